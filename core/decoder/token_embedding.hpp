#pragma once
/// The embedding of a decoder: of its tokens and, where it learns them, of their positions.

#include "megahost/nn/decoder_config.hpp"
#include "megahost/nn/embedding.hpp"

#include <cstdint>
#include <memory>

namespace mh {

class TokenEmbedding {
public:
  /// made_before: over the tables of the embedding, which is a block before this one
  /// site:        of its dropout
  TokenEmbedding(
      Builder& builder, const DecoderConfig& c, int64_t seq_length, bool made_before, uint64_t site
  );

  /// ahead: the tokens are those so many positions further on
  ///
  /// Shapes:  tokens [seq, batch] int64 -> [seq, batch, embed]
  [[nodiscard]] at::Tensor
  forward(const at::Tensor& tokens, int64_t ahead, StepContext& context) const;

private:
  Axis embed_;
  double scale_, dropout_;
  uint64_t site_;
  int64_t last_; // position
  Embedding tokens_;
  std::unique_ptr<Embedding> positions_; // or null
};

} // namespace mh
