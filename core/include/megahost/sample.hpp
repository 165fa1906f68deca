#pragma once
/// Samples: named arrays, which a corpus gives and a model reads.

#include "megahost/axis.hpp"
#include "megahost/export.hpp"

#include <cstdint>
#include <map>
#include <string>
#include <variant>
#include <vector>

namespace mh {

/// One array of a sample.
using Array = std::variant<std::vector<int64_t>, std::vector<float>>;

/// Decoders read "tokens", "labels" (the next tokens) and "loss_mask" (float, 1 where a label
/// counts); a corpus may add "positions" and "segments" (document numbers) for packed documents, or
/// arrays of its own.
using Sample = std::map<std::string, Array, std::less<>>;

/// The facts about an array of every sample that are known before any data are read.
struct ArraySpec {
  enum class Type : uint8_t { int64, float32 };

  std::string name;
  Type type = Type::int64;
  /// The axis of its elements. An array on axis::seq has one element for each token, and ranks that
  /// split the sequence get those of their tokens; an array on another axis reaches every rank
  /// whole. An architecture that reads an array on axis::batch (a number of each sample) compares
  /// the samples of a microbatch with each other: its loss depends on which of them meet, and
  /// layouts are checked with the same microbatches.
  LogicalAxis axis = axis::seq;
  int64_t length = 0; ///< elements; on axis::seq the sequence length
  /// The sequence whose tokens the elements of axis::seq are; empty: the sample's own. The context
  /// of a sequence NAME is made from "NAME_positions", "NAME_segments" and "NAME_token_index".
  std::string sequence{};
  /// An int64 array has numbers from 0 to below this; 0: not said, for ids the vocabulary's size.
  int64_t below = 0;
  /// About which share of the elements is not 0, for a float32 array that masks losses. Below 1 the
  /// vocabulary's scores are computed for those tokens alone, and plans count on this share.
  double share = 1;
};

/// An array of a batch that is made of one of the corpus's: element i is that of token i + `ahead` of
/// the same document ("segments"), and 0 where the document or the sample ends before it. `from` has
/// an element for each token of the sample's own sequence.
struct ShiftedArray {
  std::string name;
  std::string from;
  int64_t ahead = 1;
};

/// "tokens" and "labels" (int64) and "loss_mask" (float32), each with an element for every token.
[[nodiscard]] MH_API std::vector<ArraySpec> decoder_arrays(int64_t seq_length);

} // namespace mh
