#define MH_PLUGIN_LICENSE "Apache-2.0"
#include <megahost/error.hpp>
#include <megahost/optimizer.hpp>
#include <megahost/plugin.hpp>

#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/full.h>

#include <map>
#include <utility>

namespace {

/// One fused pass over all tensors of equal rate and decay.
///
/// Source:  arXiv:1711.05101, algorithm 2 (decay scaled by the learning rate)
class AdamW : public mh::Optimizer {
public:
  struct Config {
    std::vector<double> betas{0.9, 0.95};
    double eps = 1e-8;
  };

  static void fields(mh::Fields<Config>& f) {
    f.add("betas", &Config::betas, "decay rates of the averages of gradients and of their squares");
    f.add("eps", &Config::eps, "added to the root of the averaged squares").at_least(0);
    f.check("betas", [](const Config& c) -> std::string {
      if (c.betas.size() != 2) {
        return "takes two numbers, like { 0.9, 0.95 }";
      }
      for (const double beta : c.betas) {
        if (beta < 0 || beta >= 1) {
          return "must be at least 0 and below 1";
        }
      }
      return "";
    });
  }

  AdamW(const Config& config, const Args&)
      : config_(config) {}

  [[nodiscard]] std::vector<mh::StateSpec> state() const override {
    return {{"exp_avg"}, {"exp_avg_sq"}};
  }

  void update(std::span<mh::UpdateItem> items, const mh::Update& update) const override {
    struct Tensors {
      std::vector<at::Tensor> weights, gradients, averages, squares, steps;
    };

    std::map<std::pair<double, double>, Tensors> groups;
    for (auto& item : items) {
      if (item.weight.is_meta()) {
        continue; // in place, nothing allocated: a plan has nothing to see
      }
      auto& group = groups[{item.lr_multiplier, item.weight_decay}];
      group.weights.push_back(item.weight);
      group.gradients.push_back(item.gradient);
      group.averages.push_back(item.state.at(0));
      group.squares.push_back(item.state.at(1));
    }
    for (auto& [key, group] : groups) {
      const auto options = group.weights.front().options().dtype(at::kFloat);
      group.steps.assign(
          group.weights.size(), at::full({}, static_cast<double>(update.step), options)
      );
      std::optional<at::Tensor> divisor;
      if (update.gradient_scale != 1) {
        divisor = at::full({}, 1 / update.gradient_scale, options);
      }
      at::_fused_adamw_(
          group.weights,
          group.gradients,
          group.averages,
          group.squares,
          {},
          group.steps,
          update.lr * key.first,
          config_.betas[0],
          config_.betas[1],
          key.second,
          config_.eps,
          /*amsgrad=*/false,
          /*maximize=*/false,
          divisor
      );
    }
  }

private:
  Config config_;
};

} // namespace

MH_PLUGIN("org.megahost.adamw", "0.1.0", "Adam with decoupled weight decay", [](mh::Registry& r) {
  r.add<AdamW>("adamw", "Adam with decoupled weight decay");
});
