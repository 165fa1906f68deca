#include "core/bench/machines.hpp"

#include "core/base/folders.hpp"
#include "core/bench/machine.hpp"
#include "core/kernels/processor.hpp"

#include <utility>

namespace mh {

namespace {

Machine row(const std::string& name) {
  ReadOptions options;
  options.roots = recipe_folders();
  return find_machine(name, options);
}

} // namespace

Machines::Machines(std::string on)
    : on_(std::move(on)) {
  if (!on_.empty() && on_ != kThisMachine) {
    named_ = row(on_);
  }
}

std::vector<Layer> Machines::layers() const {
  if (on_.empty()) {
    return {};
  }
  return {{"--on", Table{{"device", named_ ? named_->hardware.device : "cpu"}}}};
}

Facts Machines::facts(int64_t world) const {
  const bool bf16 = named_ ? named_->hardware.bf16_tflops > 0 : this_processor().bf16();
  return {.bf16 = bf16, .world = world};
}

Machine Machines::of(const Recipe& recipe, int64_t ranks) const {
  if (named_) {
    return *named_;
  }
  if (recipe.device.use != "cpu") {
    return row(kUsualGpu);
  }
  if (!cpu_) {
    cpu_ = calibrated_cpu();
    calibrated_ = cpu_.has_value();
  }
  if (!cpu_) {
    cpu_ = measure_cpu(recipe.precision == "fp32" ? at::kFloat : at::kBFloat16);
  }
  return share_of(*cpu_, ranks);
}

std::vector<std::string> Machines::notes(const Recipe& recipe) const {
  if (named_) {
    return {};
  }
  if (recipe.device.use != "cpu") {
    return {
        std::string("the recipe does not say on which GPU: ") + kUsualGpu +
        " is taken, --on names another"};
  }
  if (calibrated_) {
    return {};
  }
  return {"times are estimates: what steps reach of this CPU's rates is assumed; `megahost bench "
          "--calibrate` measures it, in about a minute"};
}

} // namespace mh
