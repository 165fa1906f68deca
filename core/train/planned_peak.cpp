#include "core/train/planned_peak.hpp"

#include "core/kernels/counting_allocator.hpp"
#include "core/mesh/silent.hpp"
#include "core/train/batches.hpp"
#include "megahost/mesh.hpp"
#include "megahost/model.hpp"

#include <ATen/TensorOperators.h>

#include <string>

namespace mh {
namespace {

class Given : public RecomputePolicy {
public:
  explicit Given(const std::vector<Keep>& keep)
      : keep_(keep) {}

  [[nodiscard]] Keep keep(int64_t layer) const override {
    return keep_.at(static_cast<size_t>(layer));
  }

private:
  const std::vector<Keep>& keep_;
};

} // namespace

int64_t planned_peak(
    const Architecture& architecture,
    const Builder::Args& given,
    at::DeviceType target,
    const Optimizer& optimizer,
    const WeightOptions& given_options,
    const Batch& microbatch,
    const std::vector<Keep>& keep
) {
  const MetaMemory memory;
  const Mesh mesh = alone(given.mesh->shape(), given.mesh->rank());
  const Given policy(keep);
  auto args = given;
  args.mesh = &mesh;
  args.device = at::kMeta;
  args.initialise = false;
  Model model(architecture, args, &policy);
  model.parameters().allocate_gradients();
  auto options = given_options;
  options.mesh = &mesh;
  const Weights weights(model.parameters(), optimizer, options);
  const Batch batch = to_device(microbatch, at::kMeta);
  StepContext context(mesh, *args.rules, batch);
  context.target = target;
  context.training = true;
  context.loss_count = [](const std::string&) { return 1.0; };
  (void)model.forward(context);
  at::Tensor total;
  for (const auto& loss : context.take_losses()) {
    total = total.defined() ? total + loss.sum : loss.sum;
  }
  backward(total);
  return memory.peak();
}

} // namespace mh
