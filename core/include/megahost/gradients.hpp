#pragma once
/// Gradients of a model's parameters: allocated, summed over ranks in buckets while the backward
/// pass goes on, and under `zero` sharded, so that each data rank updates (1) and keeps (2) its
/// local shard only, values included (3).
///
/// ```cpp
/// mh::Gradients gradients(model.parameters(), mesh);
/// gradients.begin(/*microbatches=*/1);
/// (void)model.forward(context);
/// mh::backward(context.losses().front().sum);
/// gradients.finish();                                   // summed over all ranks that need it
/// const at::Tensor norm = gradients.squared_norm().sqrt();
/// ```
///
/// A bucket is a flat buffer with the gradients of some leaves that are summed over the same mesh
/// axes. Buckets start in one order on all ranks, that of the backward pass: each as soon as its
/// leaves have their gradients of the last microbatch. How many uses a leaf has is learned in the
/// first step, whose sums start at its end; from ZeRO-2 on, which has no room for all gradients, when
/// the backward pass has left the blocks that use the leaves.
///
/// Source:  arXiv:2006.15704 (buckets), arXiv:1910.02054 (ZeRO)

#include "megahost/export.hpp"
#include "megahost/mesh.hpp"
#include "megahost/optimizer.hpp"
#include "megahost/parameter.hpp"

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace mh {

struct Bucket;
class DeferredValues;
class ShardedValues;

/// A piece of a parameter that this rank updates, or the part of one that is in its local shard.
struct OwnedPiece {
  Parameter* parameter;
  Piece piece;         ///< `copies`: ranks that update the same elements
  at::Tensor gradient; ///< gradient in the piece's shape
  at::Tensor value;    ///< value in the piece's shape
};

struct GradientOptions {
  int64_t zero = 0;          ///< 0: all ranks update all; 1: state is sharded, 2: gradients too,
                             ///< 3: values too
  Unit unit = Unit::element; ///< unit that `zero` may cut a parameter into
  int64_t bucket = int64_t{10} << 20; ///< elements of a bucket; under ZeRO-3 a block's, at most
  bool overlap = true;                ///< false: every sum starts after the backward pass
  at::ScalarType reduce = at::kFloat; ///< kBFloat16: half the traffic, rounded once
  DeferredValues* deferred = nullptr; ///< values that are still to be made; null: all are there
};

class MH_API Gradients : public ParameterListener {
public:
  /// Allocates the gradients of all parameters that are trained: float32, or float64 for float64
  /// parameters, and zero. Parameters and mesh outlive the object.
  ///
  /// Ranks:   the same parameters on all ranks of dp; nothing is communicated
  Gradients(ParameterStore& store, const Mesh& mesh, const GradientOptions& options = {});
  ~Gradients() override;
  Gradients(const Gradients&) = delete;
  Gradients& operator=(const Gradients&) = delete;

  [[nodiscard]] ParameterStore& parameters() const { return store_; }

  /// Begins a step: `microbatches` backward passes follow. Gradients are zero from here on, if the
  /// update left zeros in this rank's shard.
  void begin(int64_t microbatches);

  /// One backward pass is over; ZeRO-2 keeps only this rank's shard of its gradients.
  void backward_done();

  /// After a step without an update: all gradients are zero.
  void clear();

  /// Waits until every gradient is summed over the ranks that need it, pipeline stages that share a
  /// parameter included. Nothing happens where that is done in this step.
  ///
  /// Ranks:   all of the mesh
  void finish();

  /// The pieces that this rank updates: everything, or its shard under `zero`. Gradients are summed
  /// after `finish`; those of ZeRO-2 exist there only.
  [[nodiscard]] const std::vector<OwnedPiece>& owned() const { return owned_; }

  /// The squared L2 norm of the global model's gradient, each element counted once: a scalar of the
  /// gradients' dtype on their device.
  ///
  /// Ranks:   all of the mesh
  [[nodiscard]] at::Tensor squared_norm() const;

  /// The squared L2 norm of the weights as the model computes with them, counted alike.
  ///
  /// Ranks:   all of the mesh
  [[nodiscard]] at::Tensor squared_weight_norm() const;

  /// How many of the global model's gradients are 0, each element counted once: a float64 scalar.
  ///
  /// Ranks:   all of the mesh
  [[nodiscard]] at::Tensor zeros() const;

  [[nodiscard]] int64_t zero() const { return options_.zero; }

  /// After this rank's shard of the values has changed: the others get it. Each block waits for its
  /// own values before it runs, everything else for `wait_for_all`.
  ///
  /// Ranks:   all of the mesh
  void share_parameters();

  /// Every parameter has its value when this returns; under ZeRO-3, until the next block runs.
  ///
  /// Ranks:   all of the mesh
  void wait_for_all();

  [[nodiscard]] const Mesh& mesh() const { return mesh_; }

  /// Bytes that gradients take from step to step on this rank.
  [[nodiscard]] int64_t bytes() const;

  /// Bytes that the parameters' values take on this rank.
  [[nodiscard]] int64_t value_bytes() const;

  bool needed(const std::vector<Parameter*>& parameters) override;
  void before(Parameter& parameter) override;
  void added(Parameter& parameter) override;

  /// In the checking mode no sum that is sharded may lose anything: a leaf of which it does is
  /// named.
  bool checking = false;

  /// Tells what happens when, for tests: "last 1" (the first gradient that bucket 1 gets of the
  /// last microbatch), "start 0" (the sum of bucket 0 starts), "values 2" (those of bucket 2 came).
  std::function<void(const std::string&)> trace;

private:
  using Of = std::function<at::Tensor(const OwnedPiece&)>;
  [[nodiscard]] at::Tensor sum_over_model(at::ScalarType dtype, const Of& of) const;
  void allocate(Bucket& bucket) const;
  void start(Bucket& bucket);
  void take(Bucket& bucket);
  void check_sharded(const Bucket& bucket, const at::Tensor& summed) const;
  void sum_up(size_t begin, size_t end);

  [[nodiscard]] int64_t round() const { return options_.zero >= 2 ? 1 : microbatches_; }

  [[nodiscard]] at::ScalarType type() const { return at::typeMetaToScalarType(flat_.dtype()); }

  const Mesh& mesh_;
  GradientOptions options_;
  ParameterStore& store_;
  std::vector<std::unique_ptr<Bucket>> buckets_; // in the order in which their sums start
  std::unique_ptr<ShardedValues> values_;
  std::map<const Parameter*, Bucket*> bucket_of_;
  std::vector<OwnedPiece> owned_;
  at::TensorOptions flat_; // options of gradients
  at::Tensor gradients_;   // all buckets' buffers, up to ZeRO-1
  int64_t microbatches_ = 1;
  bool finished_ = false;           // all sums of this step are taken
  size_t next_ = 0;                 // the bucket to start next
  size_t first_after_backward_ = 0; // the first that is summed after the last backward pass
};

} // namespace mh
