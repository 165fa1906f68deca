#pragma once
/// Values of parameters whose update data ranks share (`zero`): each rank's part goes to the others
/// after an update, and is waited for by the block that needs it first. Under ZeRO-3 a rank keeps
/// its part only; a block's values come before it runs, forward and backward, and go when the pass
/// is two blocks further on.
///
/// Source:  arXiv:1910.02054 (ZeRO), arXiv:2304.11277 (gathered ahead, freed after use)

#include "core/step/backward_progress.hpp"
#include "core/step/buckets.hpp"

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace mh {

class ShardedValues {
public:
  /// Moves the values of the buckets that are sharded into these, block by block; values that are
  /// not made yet are made there. Nothing is communicated.
  void take(const Buckets& buckets, const GradientOptions& options);

  /// This rank's part has changed.
  ///
  /// Ranks:   those that share the buckets
  void send();

  /// See ParameterListener::needed.
  bool needed(const std::vector<Parameter*>& parameters);

  /// How far the backward pass is, by the blocks that say what they need.
  BackwardProgress progress;

  /// Every parameter has its value when this returns; under ZeRO-3, until the next block runs.
  void wait_for_all();

  /// Waits for gathers in flight: before this rank's part changes.
  void settle();

  /// Bytes that this rank keeps of them.
  [[nodiscard]] int64_t bytes() const;

  /// Tells that the values of a bucket have come: "values 3".
  std::function<void(const std::string&)> trace;

private:
  void fetch(Bucket& bucket);
  void receive(Bucket& bucket);
  void drop(Bucket& bucket);
  int64_t next_after(int64_t block);

  bool freed_ = false;           // ZeRO-3
  bool ahead_ = true;            // values arrive during the passes
  std::vector<Bucket*> buckets_; // that are sharded, in the order of the forward pass
  std::map<const Parameter*, Bucket*> bucket_of_;
  std::map<int64_t, std::vector<Bucket*>> of_block_;
  int64_t block_ = 0;   // the one that ran last
  bool forward_ = true; // and where its pass went
};

} // namespace mh
