#pragma once
/// The parts of a training loop of your own: batches from a corpus, the weights that an optimizer
/// updates, and their checkpoints. A whole loop is examples/own_loop.cpp; the heart of it is
///
/// ```cpp
/// mh::Gradients gradients(model.parameters(), mesh);
/// mh::TrainedWeights weights(gradients, *optimizer);
/// for (int64_t step = 1; step <= 5; ++step) {
///   const auto batch = mh::load_batch(*corpus, mh::Split::train, (step - 1) * 4, 4, 64);
///   mh::StepContext context(mesh, rules, batch);
///   (void)model.forward(context);
///   const mh::Loss& loss = context.losses().front();
///   mh::backward(loss.sum.div(context.count(loss)));
///   weights.update({.step = step, .lr = 1e-2});
/// }
/// weights.save("runs/mine", 5);
/// ```
///
/// Batch and context live until the backward pass is over: what is recomputed reads them again.

#include "megahost/context.hpp"
#include "megahost/corpus.hpp"
#include "megahost/export.hpp"
#include "megahost/gradients.hpp"
#include "megahost/model.hpp"
#include "megahost/optimizer.hpp"
#include "megahost/storage.hpp"

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>

namespace mh {

/// Samples first .. first + count - 1 of a split as one microbatch on the CPU.
///
/// Shapes:  every array [length, count], the corpus's sample arrays as columns
/// Throws:  mh::Error (exit code 5) if the corpus fails, or its arrays differ between samples
[[nodiscard]] MH_API Batch
load_batch(const Corpus& corpus, Split split, int64_t first, int64_t count, int64_t seq_length);

/// A model's float32 master weights and the optimizer's state. In float32 and float64 the
/// parameters are their own masters; in bfloat16 they are rounded from the masters after each
/// update.
class MH_API TrainedWeights {
public:
  /// Master weights of the parameters that have these gradients. Model, gradients and optimizer
  /// outlive the object.
  TrainedWeights(Gradients& gradients, const Optimizer& optimizer, double weight_decay = 0);
  ~TrainedWeights();
  TrainedWeights(TrainedWeights&&) noexcept;

  /// Ends a step: finishes the sums of gradients over ranks, updates by them, and begins the next
  /// step of one microbatch. For more call `Gradients::begin`; to clip, `finish` and
  /// `squared_norm`, and `update.gradient_scale`.
  ///
  /// Ranks:   all of the mesh
  void update(const Update& update);

  /// Writes weights and state as the checkpoint of `step` in a run folder, whole or not at all;
  /// `megahost eval --weights` reads it too.
  ///
  /// Throws:  mh::Error (exit code 5) naming path and cause
  void
  save(const std::filesystem::path& run, int64_t step, Storage& storage = local_storage()) const;

  /// Loads the newest whole checkpoint of a run folder; returns its step, nothing if there is none.
  ///
  /// Throws:  mh::Error (exit code 5) if there are checkpoints, but none is whole or fits the model
  std::optional<int64_t> load(const std::filesystem::path& run, Storage& storage = local_storage());

private:
  struct Held;
  std::unique_ptr<Held> held_;
};

} // namespace mh
