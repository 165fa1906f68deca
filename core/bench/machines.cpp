#include "core/bench/machines.hpp"

#include "core/base/folders.hpp"
#include "core/bench/machine.hpp"
#include "core/kernels/processor.hpp"
#include "megahost/error.hpp"

#include <utility>

namespace mh {

namespace {

Machine row(const std::string& name) {
  ReadOptions options;
  options.roots = recipe_folders();
  return find_machine(name, options);
}

} // namespace

Machines::Machines(std::string on, Host& host)
    : on_(std::move(on))
    , host_(host) {
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

const PlannedDevice& Machines::device(const Recipe& recipe) const {
  return host_.require(Kind::device, recipe.device.use).planned;
}

Machine Machines::of(const Recipe& recipe, int64_t ranks) const {
  if (named_) {
    return *named_;
  }
  const PlannedDevice& usual = device(recipe);
  if (!usual.machine.empty()) {
    return row(usual.machine);
  }
  if (!usual.in_host_memory()) {
    throw Error(
        "device \"" + recipe.device.use + "\" does not say which machine it is planned for",
        "name one: --on NAME (megahost plan --help lists them)"
    );
  }
  if (!cpu_) {
    cpu_ = calibrated_cpu();
    calibrated_ = cpu_.has_value();
  }
  if (!cpu_) {
    constexpr double kShortly = 0.05; // seconds: a plan waits
    const auto type = recipe.precision == "fp32" ? at::kFloat : at::kBFloat16;
    cpu_ = measure_cpu(type, measured_peak(type, 1), kShortly);
  }
  return share_of(*cpu_, ranks);
}

std::vector<std::string> Machines::notes(const Recipe& recipe) const {
  if (named_) {
    return {};
  }
  if (const std::string& usual = device(recipe).machine; !usual.empty()) {
    return {"the recipe does not say on which machine: " + usual + " is taken, --on names another"};
  }
  if (calibrated_) {
    return {};
  }
  return {"times are estimates: what steps reach of this CPU's rates is assumed; `megahost bench "
          "--calibrate` measures it, in about a minute"};
}

} // namespace mh
