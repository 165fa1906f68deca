#pragma once
/// Weights that several ranks hold must have the same bits on each: a rank whose memory or
/// arithmetic is at fault differs, and is named.

#include "megahost/export.hpp"
#include "megahost/parameter.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace mh {

/// This rank's host, and a checksum of each slice of a parameter that other ranks hold too.
[[nodiscard]] std::string copy_sums(const ParameterStore& store);

/// A slice whose copies differ.
struct MH_API DifferentCopies {
  std::string slice;          ///< "layers.0.attention.q.weight", with its offset if it is a part
  int64_t slices = 0;         ///< slices whose copies differ
  std::vector<int64_t> ranks; ///< ranks that differ from most others; all without a majority
  std::vector<std::string> hosts; ///< hosts of these ranks
  bool majority = false;          ///< more than half of a slice's ranks agree

  /// The hosts, each once.
  [[nodiscard]] std::vector<std::string> machines() const;

  /// "2 slices of the weights differ between ranks that should hold the same, first NAME: rank 3
  /// (host gpu-7) holds other bits than most".
  [[nodiscard]] std::string text() const;
};

/// Compares what `copy_sums` gave on each rank.
[[nodiscard]] MH_API std::optional<DifferentCopies>
different_copies(const std::vector<std::string>& sums);

} // namespace mh
