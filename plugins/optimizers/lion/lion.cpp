#define MH_PLUGIN_LICENSE "Apache-2.0"
#include <megahost/optimizer.hpp>
#include <megahost/plugin.hpp>

#include <ATen/TensorOperators.h>

#include <algorithm>
#include <string>
#include <vector>

namespace {

/// The sign of an average of the gradient and its running mean: each element steps by the learning
/// rate. One state tensor.
///
/// w -= lr (sign(beta1 m + (1 - beta1) g) + decay w);  m = beta2 m + (1 - beta2) g
///
/// If a gradient is 0 but for rounding, as a key's bias has it, the sign is that of the rounding.
///
/// Source:  arXiv:2302.06675, program 1; about a tenth of AdamW's learning rate, and ten times its
///          decay
class Lion : public mh::Optimizer {
public:
  struct Config {
    std::vector<double> betas{0.9, 0.99};
  };

  static void fields(mh::Fields<Config>& f) {
    f.add("betas", &Config::betas, "shares of the mean in the step, and of the mean that is kept");
    f.check("betas", [](const Config& c) -> std::string {
      const bool good = c.betas.size() == 2 && std::ranges::all_of(c.betas, [](double beta) {
                          return beta >= 0 && beta < 1;
                        });
      return good ? "" : "takes two numbers of at least 0 and below 1, like { 0.9, 0.99 }";
    });
  }

  Lion(const Config& config, const Args& args)
      : step_share_(config.betas[0])
      , kept_share_(config.betas[1])
      , args_(args) {}

  [[nodiscard]] std::vector<mh::StateSpec> state() const override {
    return {{"exp_avg", args_.state_dtype}};
  }

  void update(std::span<mh::UpdateItem> items, const mh::Update& update) const override {
    const double scale = update.gradient_scale, lr = update.lr;
    for (mh::UpdateItem& item : items) {
      const double rate = lr * item.lr_multiplier, decay = item.weight_decay;
      const at::Tensor g = item.gradient.mul_(scale);
      const at::Tensor m = item.state[0].to(g.scalar_type());
      item.weight.mul_(1 - rate * decay).sub_((m - g).mul_(step_share_).add_(g).sign_(), rate);
      item.state[0].copy_((m - g).mul_(kept_share_).add_(g));
    }
  }

private:
  double step_share_, kept_share_;
  Args args_;
};

} // namespace

MH_PLUGIN("org.megahost.lion", "0.1.0", "Lion", [](mh::Registry& r) {
  r.add<Lion>("lion", "steps by the sign of an average; one state tensor");
});
