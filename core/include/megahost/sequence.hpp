#pragma once
/// Sequences that a sample has in addition to its own `seq` tokens: the input of an encoder, say.
///
/// Each has a name and a length, and its dimension is axis::seq like that of every sequence, so
/// strategies shard its tokens as they do all others. A builder and a context describe the tokens
/// of the sample's own sequence, except while a SequenceScope lives:
///
/// ```cpp
/// class EncoderLayer : public mh::Block {
///   mh::State forward(const mh::State& state, mh::StepContext& context) const override {
///     const auto tokens = context.within("encoder");
///     return layer_->forward(state, context); // positions, documents, sizes: the encoder's
///   }
///   std::unique_ptr<mh::Block> layer_;
/// };
/// ```

#include "megahost/scope.hpp"

#include <cstdint>
#include <functional>
#include <map>
#include <string>

namespace mh {

/// Tokens per sample, by the sequence's name: "encoder" for what an encoder reads, so that corpora
/// and models of different authors go together.
using Sequences = std::map<std::string, int64_t, std::less<>>;

/// The beginning of a document in a sample; it ends where the next one of the sample begins.
struct DocumentStart {
  int64_t sample = 0; ///< its sample in the microbatch
  int64_t first = 0;  ///< its first token in the sample
  int64_t id = 0;     ///< its number in the array "segments"
  friend bool operator==(const DocumentStart&, const DocumentStart&) = default;
};

/// The name of the current sequence is another one while the value lives; "" is the sample's own.
using SequenceScope = ValueScope<std::string>;

} // namespace mh
