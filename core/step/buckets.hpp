#pragma once
/// Buckets: leaves whose gradients are summed over the same mesh axes and lie in one flat buffer,
/// as their values do where data ranks share them.

#include "core/step/owned.hpp"
#include "megahost/gradients.hpp"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

namespace mh {

struct Bucket {
  struct Leaf {
    Parameter* parameter;
    int64_t begin; // in the buffers
  };

  size_t number = 0;
  std::vector<GradientSum> sums; // sums that all leaves need
  bool after_backward = false;   // summed after the last backward pass: pipeline stages share it,
                                 // or all ranks keep it where gradients are sharded
  std::vector<Leaf> leaves;
  int64_t elements = 0;          // elements of the leaves
  int64_t length = 0;            // length of the buffers
  const Group* shards = nullptr; // the ranks that share the update; null: each updates all

  // Gradients.
  at::Tensor buffer; // undefined while ZeRO-2 keeps none
  at::Tensor part;   // from ZeRO-2 on: what is kept, this rank's part of the buffer
  int64_t uses = 0;  // gradients per backward pass; 0: not known yet
  int64_t seen = 0;  // in this round
  bool left = false; // all blocks that use the leaves have run backward; known from ZeRO-2 on
  enum class Sum : uint8_t { waits, started, taken } state = Sum::waits;
  Pending sum;        // the first of the sums
  at::Tensor amounts; // amounts of the leaves' gradients before it, in the checking mode

  // Values, where they are sharded.
  at::Tensor whole; // all ranks' parts
  at::Tensor own;   // this rank's part; a copy under ZeRO-3
  bool here = true; // under ZeRO-3: `whole` has memory
  bool in_flight = false;
  Pending values;

  /// Elements that this rank updates, and where they begin.
  [[nodiscard]] int64_t chunk() const {
    return shards == nullptr ? length : length / shards->size();
  }

  [[nodiscard]] int64_t first() const { return shards == nullptr ? 0 : shards->index() * chunk(); }

  /// Their gradients.
  [[nodiscard]] at::Tensor kept() const {
    return part.defined() ? part : buffer.narrow(0, first(), chunk());
  }

  /// Whether all leaves have their gradients of this round.
  [[nodiscard]] bool complete(int64_t microbatches) const {
    return !after_backward && (uses > 0 ? seen == uses * microbatches : left);
  }

  void reset() {
    seen = 0;
    left = false;
    state = Sum::waits;
  }
};

using Buckets = std::vector<std::unique_ptr<Bucket>>;

/// The buckets of all leaves that are trained, in the order in which the backward pass reaches
/// them; those that pipeline stages share come last. Their buffers are still to be allocated.
[[nodiscard]] Buckets
make_buckets(ParameterStore& store, const Mesh& mesh, const GradientOptions& options);

/// The pieces that this rank updates of a bucket.
[[nodiscard]] std::vector<OwnedPiece> owned_of(const Bucket& bucket, Unit unit);

} // namespace mh
