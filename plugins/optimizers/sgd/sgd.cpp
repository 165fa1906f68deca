#define MH_PLUGIN_LICENSE "Apache-2.0"
#include <megahost/optimizer.hpp>
#include <megahost/plugin.hpp>

#include <ATen/ops/_fused_sgd.h>
#include <ATen/ops/full.h>

#include <map>
#include <utility>

namespace {

/// v = momentum v + (g + decay w);  w -= lr v,  or with Nesterov  w -= lr (g + decay w + momentum
/// v).
///
/// Source:  Sutskever et al., "On the importance of initialization and momentum" (ICML 2013), in
/// the form
///          of torch.optim.SGD
class Sgd : public mh::Optimizer {
public:
  struct Config {
    double momentum = 0;
    bool nesterov = false;
  };

  static void fields(mh::Fields<Config>& f) {
    f.add("momentum", &Config::momentum, "factor of the previous update").at_least(0).below(1);
    f.add("nesterov", &Config::nesterov, "look one momentum step ahead");
    f.check("nesterov", [](const Config& c) -> std::string {
      return c.nesterov && c.momentum == 0 ? "needs a momentum above 0" : "";
    });
  }

  Sgd(const Config& config, const Args&)
      : config_(config) {}

  [[nodiscard]] std::vector<mh::StateSpec> state() const override {
    if (config_.momentum == 0) {
      return {};
    }
    return {{"momentum"}};
  }

  void update(std::span<mh::UpdateItem> items, const mh::Update& update) const override {
    struct Tensors {
      std::vector<at::Tensor> weights, gradients, momenta;
    };

    std::map<std::pair<double, double>, Tensors> groups;
    for (auto& item : items) {
      if (item.weight.is_meta()) {
        continue; // in place, nothing allocated: a plan has nothing to see
      }
      auto& group = groups[{item.lr_multiplier, item.weight_decay}];
      group.weights.push_back(item.weight);
      group.gradients.push_back(item.gradient);
      if (config_.momentum != 0) {
        group.momenta.push_back(item.state.at(0));
      }
    }
    for (auto& [key, group] : groups) {
      std::optional<at::Tensor> divisor;
      if (update.gradient_scale != 1) {
        divisor = at::full(
            {}, 1 / update.gradient_scale, group.weights.front().options().dtype(at::kFloat)
        );
      }
      at::_fused_sgd_(
          group.weights,
          group.gradients,
          group.momenta,
          key.second,
          config_.momentum,
          update.lr * key.first,
          /*dampening=*/0,
          config_.nesterov,
          /*maximize=*/false,
          /*is_first_step=*/false,
          divisor
      );
    }
  }

private:
  Config config_;
};

} // namespace

MH_PLUGIN("org.megahost.sgd", "0.1.0", "stochastic gradient descent", [](mh::Registry& r) {
  r.add<Sgd>("sgd", "gradient descent with momentum");
});
