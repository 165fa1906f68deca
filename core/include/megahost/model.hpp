#pragma once
/// A model of an architecture, built for this rank.
///
///   mh::Model model(architecture, {.mesh = &mesh, .rules = &rules, .dtype = at::kFloat, .seq =
///   64}); model.parameters().allocate_gradients(); mh::StepContext context(mesh, rules, batch);
///   model.forward(context);
///   mh::backward(context.losses()...);

#include "megahost/architecture.hpp"
#include "megahost/builder.hpp"
#include "megahost/export.hpp"
#include "megahost/recompute.hpp"

#include <memory>
#include <vector>

namespace mh {

class MH_API Model {
public:
  /// Builds embedding, blocks and head. `policy` may be null: everything is kept.
  Model(
      const Architecture& architecture,
      const Builder::Args& args,
      const RecomputePolicy* policy = nullptr
  );
  ~Model();
  Model(Model&&) noexcept;

  /// Runs all blocks; losses are in the context afterwards, or "logits" in the returned state.
  [[nodiscard]] State forward(StepContext& context) const;

  [[nodiscard]] ParameterStore& parameters() { return *store_; }

  [[nodiscard]] const ParameterStore& parameters() const { return *store_; }

  [[nodiscard]] const Flops& flops() const { return flops_; }

private:
  std::unique_ptr<ParameterStore> store_;
  std::vector<std::unique_ptr<Block>> blocks_;
  std::vector<Keep> keep_;
  Flops flops_;
};

/// Back-propagates a scalar: gradients accumulate in the parameters' main gradients.
MH_API void backward(const at::Tensor& scalar);

} // namespace mh
