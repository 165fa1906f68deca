#pragma once
/// Gradients over ranks: summed in buckets while the backward pass goes on, and under `zero` dealt
/// out, so that each data rank updates (1) and keeps (2) its part only.
///
///   Gradients gradients(model.parameters(), mesh, {.zero = 1});
///   gradients.begin(microbatches);
///   for (...) { backward(loss); gradients.backward_done(); }
///   gradients.finish();                  // every sum is taken
///   update(gradients.owned());           // this rank's part
///   gradients.share_parameters();        // and the others' values come
///   gradients.wait_for_all();
///
/// A bucket is a flat buffer with the gradients of some leaves that are summed over the same mesh
/// axes. Buckets start in one order on all ranks, that of the backward pass: each as soon as its
/// leaves have their gradients of the last microbatch. How many uses a leaf has is learned in the
/// first step, whose sums all start at its end.
///
/// Source:  arXiv:2006.15704 (buckets), arXiv:1910.02054 (ZeRO)

#include "core/train/owned.hpp"
#include "megahost/mesh.hpp"
#include "megahost/optimizer.hpp"
#include "megahost/parameter.hpp"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace mh {

struct GradientOptions {
  int64_t zero = 0;                   ///< 0: all ranks update all, 1: state, 2: gradients too
  Unit unit = Unit::element;          ///< what `zero` may cut a parameter into
  int64_t bucket = int64_t{10} << 20; ///< elements of a bucket
  bool overlap = true;                ///< false: every sum starts after the backward pass
  at::ScalarType reduce = at::kFloat; ///< kBFloat16: half the traffic, rounded once
};

class Gradients : public GradientListener {
public:
  /// Allocates the gradients of all parameters that are trained.
  ///
  /// Ranks:   the same parameters on all ranks of dp; nothing is communicated
  Gradients(ParameterStore& store, const Mesh& mesh, const GradientOptions& options = {});
  ~Gradients() override;
  Gradients(const Gradients&) = delete;
  Gradients& operator=(const Gradients&) = delete;

  /// Gradients are zero from here on, if the update left zeros in this rank's part. `microbatches`
  /// backward passes follow.
  void begin(int64_t microbatches);

  /// One backward pass is over; zero 2 keeps only this rank's part of its gradients.
  void backward_done();

  /// After a step without an update: all gradients are zero.
  void clear();

  /// Waits until every gradient is summed over the ranks that need it.
  void finish();

  /// What this rank updates: everything, or its part under `zero`. Gradients are summed after
  /// `finish`; those of zero 2 exist there only.
  [[nodiscard]] const std::vector<Owned>& owned() const { return owned_; }

  /// The squared L2 norm of the global model's gradient, each element counted once: a scalar of the
  /// gradients' dtype on their device.
  ///
  /// Ranks:   all of the mesh
  [[nodiscard]] at::Tensor squared_norm() const;

  /// How many of the global model's gradients are 0, each element counted once: a float64 scalar.
  ///
  /// Ranks:   all of the mesh
  [[nodiscard]] at::Tensor zeros() const;

  [[nodiscard]] int64_t zero() const { return options_.zero; }

  /// After the update: sends the values of what this rank owns to the others, and starts to receive
  /// theirs, which `wait_for_all` ends.
  ///
  /// Ranks:   all of the mesh
  void share_parameters();

  /// Waits until every parameter has its new value: before the next forward pass.
  void wait_for_all();

  /// Bytes that gradients take from step to step on this rank.
  [[nodiscard]] int64_t bytes() const;

  void before(Parameter& parameter) override;
  void added(Parameter& parameter) override;

  /// Tells what happens when, for tests: "last 1" (the first gradient that bucket 1 gets of the
  /// last microbatch), "start 0" (the sum of bucket 0 starts).
  std::function<void(const std::string&)> trace;

private:
  struct Bucket;
  using Of = std::function<at::Tensor(const at::Tensor&)>;
  [[nodiscard]] at::Tensor sum_over_model(const Of& of) const;
  void make_buckets(ParameterStore& store);
  void lay_out(Bucket& bucket) const;
  void own_pieces();
  void allocate(Bucket& bucket) const;
  void start(Bucket& bucket);
  void take(Bucket& bucket);
  void sum_up();

  [[nodiscard]] int64_t round() const { return options_.zero >= 2 ? 1 : microbatches_; }

  void receive(Bucket& bucket);

  const Mesh& mesh_;
  GradientOptions options_;
  ParameterStore& store_;
  std::vector<std::unique_ptr<Bucket>> buckets_; // in the order in which their sums start
  std::map<const Parameter*, Bucket*> bucket_of_;
  std::vector<Owned> owned_;
  at::Tensor gradients_; // all buckets' buffers, unless zero is 2
  int64_t microbatches_ = 1;
  size_t next_ = 0;       // the bucket to start next
  size_t first_late_ = 0; // the first that pipeline stages share
};

} // namespace mh
