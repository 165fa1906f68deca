// Lion: the sign of a running average of gradients, one state tensor per parameter.
//
//   w -= lr (sign(b1 m + (1 - b1) g) + decay w),   m = b2 m + (1 - b2) g
//
// Source: arXiv:2302.06675

#define MH_PLUGIN_LICENSE "MIT"
#include <megahost/optimizer.hpp>
#include <megahost/plugin.hpp>

#include <ATen/core/Tensor.h>

namespace {

class @Name@ : public mh::Optimizer {
public:
  struct Config {
    double blend = 0.9;
    double memory = 0.99;
  };

  // Each field is an option of the recipe's section: checked, documented, with a default.
  static void fields(mh::Fields<Config>& f) {
    f.add("blend", &Config::blend, "share of the average in the update").at_least(0).below(1);
    f.add("memory", &Config::memory, "share that the average keeps of itself").at_least(0).below(1);
  }

  @Name@(const Config& config, const Args&)
      : config_(config) {}

  // All that must survive a restart belongs here: it is saved with the weights.
  std::vector<mh::StateSpec> state() const override { return {{"average"}}; }

  void update(std::span<mh::UpdateItem> items, const mh::Update& update) const override {
    for (mh::UpdateItem& item : items) {
      const at::Tensor gradient = item.gradient.mul(update.gradient_scale);
      at::Tensor& average = item.state.at(0);
      const at::Tensor direction = average.lerp(gradient, 1 - config_.blend).sign();
      const double lr = update.lr * item.lr_multiplier;
      item.weight.mul_(1 - lr * item.weight_decay).sub_(direction, lr);
      average.lerp_(gradient, 1 - config_.memory);
    }
  }

private:
  Config config_;
};

} // namespace

MH_PLUGIN("@id@", "0.1.0", "A plugin with an optimizer", [](mh::Registry& registry) {
  registry.add<@Name@>("@name@", "the sign of a running average of gradients");
})
