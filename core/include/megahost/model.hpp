#pragma once
/// A model of an architecture, built for this rank: its pipeline stage's blocks, with local shapes.
///
/// ```cpp
/// mh::Model model(architecture, {.mesh = &mesh, .rules = &rules, .seq = 64, .microbatch = 4});
/// mh::Gradients gradients(model.parameters(), mesh); // gradients.hpp
/// mh::StepContext context(mesh, rules, batch);
/// (void)model.forward(context);
/// mh::backward(context.losses().front().sum);
/// ```

#include "megahost/architecture.hpp"
#include "megahost/builder.hpp"
#include "megahost/export.hpp"
#include "megahost/recompute.hpp"

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace mh {

/// One activation of the state that passes from one chunk of a pipeline to the next.
struct Passed {
  std::string name;
  Dims dims;                 ///< global
  std::vector<int64_t> size; ///< the local shard's
  at::ScalarType dtype = at::kFloat;
  bool differentiable = true; ///< a gradient comes back
};

class MH_API Model {
public:
  /// Builds embedding, blocks and head, or those of this stage's chunks (`args.chunks`). `policy`
  /// may be null: every activation is saved. The architecture outlives the model where there are
  /// chunks.
  ///
  /// Ranks:   local
  Model(
      const Architecture& architecture,
      const Builder::Args& args,
      const RecomputePolicy* policy = nullptr
  );
  ~Model();
  Model(Model&&) noexcept;

  /// Runs all blocks; losses are in the context afterwards, or "logits" in the returned state.
  [[nodiscard]] State forward(StepContext& context) const;

  /// Runs the blocks of this stage's chunk `chunk`. The first chunk of a pipeline takes an empty
  /// state, the others what the chunk before returned.
  [[nodiscard]] State forward(int64_t chunk, const State& state, StepContext& context) const;

  /// Whether all blocks of this stage read a kv_cache (Block::reads_cache), but for the first ones,
  /// which may run once (Block::runs_once).
  [[nodiscard]] bool reads_cache() const;

  /// Chunks of this stage.
  [[nodiscard]] int64_t chunks() const;

  /// The tensors that this stage's chunk `chunk` takes for such a batch from the chunk before it:
  /// found by running that part of the model on the Meta device, once per shape of batch. Empty for
  /// the first chunk.
  [[nodiscard]] const std::vector<Passed>& input(int64_t chunk, const Batch& batch) const;

  /// The tensors that it passes to the next chunk, found in the same way. Empty for the last chunk.
  [[nodiscard]] const std::vector<Passed>& output(int64_t chunk, const Batch& batch) const;

  /// This stage's parameters.
  [[nodiscard]] ParameterStore& parameters() { return *store_; }

  [[nodiscard]] const ParameterStore& parameters() const { return *store_; }

  /// Elements of the whole model's parameters, each counted once.
  [[nodiscard]] int64_t global_elements() const { return elements_; }

  /// FLOPs of the whole model.
  [[nodiscard]] const Flops& flops() const { return flops_; }

  /// After each update: what layers gathered over the step changes the next one (step_state.hpp).
  ///
  /// Ranks:   collective over tp, cp and dp
  void end_step(const Mesh& mesh) const;

  /// Instead of `end_step` after a step without an update: what was gathered is forgotten.
  void forget_step() const;

private:
  struct Blocks; // one chunk's
  class Boundaries;

  std::unique_ptr<ParameterStore> store_;
  std::vector<Blocks> chunks_;
  std::unique_ptr<Boundaries> boundaries_; // null where there is one chunk
  Flops flops_;
  int64_t elements_ = 0;
  std::vector<std::shared_ptr<StepState>> step_states_;
};

/// Back-propagates a scalar: gradients accumulate in the parameters' main gradients.
MH_API void backward(const at::Tensor& scalar);

} // namespace mh
