#define MH_PLUGIN_LICENSE "Apache-2.0"
#include <megahost/optimizer.hpp>
#include <megahost/plugin.hpp>

#include <ATen/TensorOperators.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <string>
#include <vector>

namespace {

/// AdamW whose weights are a running average, so that the learning rate need not fall. Gradients
/// are taken at y, between the average x, which is kept and evaluated, and z, which steps:
///
/// y = beta1 x + (1 - beta1) z;  z -= lr (g / (sqrt(v / (1 - beta2^step)) + eps) + decay y)
/// x += c (z - x), with c this update's share of the sum of step^r max(lr so far)^weight_lr_power
///
/// The state is z - x: it is zero where a run begins, whatever weights it begins with.
///
/// Source:  arXiv:2405.15682, algorithm 1, in the form of schedulefree.AdamWScheduleFree
class ScheduleFree : public mh::Optimizer {
public:
  struct Config {
    std::vector<double> betas{0.9, 0.999};
    double eps = 1e-8;
    double r = 0;
    double weight_lr_power = 2;
  };

  static void fields(mh::Fields<Config>& f) {
    f.add(
        "betas",
        &Config::betas,
        "share of the average in the weights that training computes with; decay rate of the "
        "averaged squares"
    );
    f.add("eps", &Config::eps, "added to the root of the averaged squares").above(0);
    f.add("r", &Config::r, "power of an update's number in its share of the average").at_least(0);
    f.add(
         "weight_lr_power",
         &Config::weight_lr_power,
         "power of the largest learning rate so far in it"
    )
        .at_least(0);
    f.check("betas", [](const Config& c) -> std::string {
      const bool good = c.betas.size() == 2 && std::ranges::all_of(c.betas, [](double beta) {
                          return beta >= 0 && beta < 1;
                        });
      return good ? "" : "takes two numbers of at least 0 and below 1, like { 0.9, 0.999 }";
    });
  }

  ScheduleFree(const Config& config, const Args& args)
      : config_(config)
      , args_(args) {}

  [[nodiscard]] std::vector<mh::StateSpec> state() const override {
    return {
        {"ahead", args_.state_dtype}, // z - x
        {"exp_avg_sq", args_.state_dtype},
        {"lr_max", at::kFloat, {1}},
        {"weight_sum", at::kFloat, {1}}};
  }

  [[nodiscard]] bool takes_tensors() const override { return true; }

  [[nodiscard]] bool keeps_other_weights() const override { return true; }

  void set_parameters(std::span<mh::UpdateItem> items) const override {
    for (mh::UpdateItem& item : items) {
      item.parameter.copy_(training_weight(item));
    }
  }

  void update(std::span<mh::UpdateItem> items, const mh::Update& update) const override {
    const double beta2 = config_.betas[1];
    const at::Tensor step = update.step.tensor(), scale = update.gradient_scale.tensor();
    const at::Tensor correction = 1 - at::pow(beta2, step);
    for (mh::UpdateItem& item : items) {
      const at::Tensor rate = (update.lr * item.lr_multiplier).tensor();
      const at::Tensor share = share_of(item, rate, step);
      const at::Tensor g = item.gradient.mul_(scale);
      const auto type = g.scalar_type();
      const at::Tensor v = item.state[1].to(type) * beta2 + g.square() * (1 - beta2);
      const at::Tensor direction = g / ((v / correction).sqrt() + config_.eps) +
                                   training_weight(item) * item.weight_decay.tensor();
      const at::Tensor ahead = item.state[0].to(type) - direction * rate; // z - x, of the old x
      const at::Tensor moved = ahead * share;
      item.weight.copy_(item.weight.to(type) + moved);
      item.state[0].copy_(ahead - moved);
      item.state[1].copy_(v);
    }
  }

private:
  /// y, in the gradients' dtype.
  [[nodiscard]] at::Tensor training_weight(const mh::UpdateItem& item) const {
    const auto type = item.gradient.scalar_type();
    return item.weight.to(type) + item.state[0].to(type) * (1 - config_.betas[0]);
  }

  /// This update's share of the average, one element: 1 at the first rate above 0, and 0 before.
  [[nodiscard]] at::Tensor
  share_of(mh::UpdateItem& item, const at::Tensor& rate, const at::Tensor& step) const {
    at::Tensor &most = item.state[2], &sum = item.state[3];
    most.copy_(at::maximum(most, rate));
    const at::Tensor weight = most.pow(config_.weight_lr_power) * step.pow(config_.r);
    sum.add_(weight);
    return at::where(sum > 0, weight / sum, at::zeros_like(sum));
  }

  Config config_;
  Args args_;
};

} // namespace

MH_PLUGIN("org.megahost.schedule_free", "0.1.0", "Schedule-free AdamW", [](mh::Registry& r) {
  r.add<ScheduleFree>(
      "schedule_free_adamw", "AdamW with averaged weights in place of a falling learning rate"
  );
});
