#pragma once
/// How far a backward pass has come, by the blocks that it reaches: which parameters get no more
/// gradients in it.

#include "megahost/parameter.hpp"

#include <cstdint>
#include <limits>
#include <map>
#include <vector>

namespace mh {

class BackwardProgress {
public:
  /// A block is about to run, forward or backward. It is known by the list of its parameters, which
  /// stays where it is.
  ///
  /// Returns: whether a backward pass has come to it
  bool enter(const std::vector<Parameter*>& parameters);

  /// Whether all blocks that use the parameter have run backward.
  [[nodiscard]] bool is_past(const Parameter& parameter) const;

  /// The backward pass is over.
  void end() { reached_ = kNone; }

private:
  static constexpr int64_t kNone = std::numeric_limits<int64_t>::max();

  std::map<const std::vector<Parameter*>*, int64_t> blocks_; // in the order of the forward pass
  std::map<const Parameter*, int64_t> first_;                // the first of them that uses it
  int64_t reached_ = kNone;                                  // the block whose backward began last
};

} // namespace mh
