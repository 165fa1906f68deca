#define MH_PLUGIN_LICENSE "Apache-2.0"
#include <megahost/error.hpp>
#include <megahost/optimizer.hpp>
#include <megahost/plugin.hpp>

#include <string>
#include <vector>

namespace {

/// Running averages of gradients and of their squares, in one pass over all parameters.
///
/// Source:  arXiv:1412.6980; decoupled decay, scaled by the learning rate: arXiv:1711.05101,
///          algorithm 2
template <bool Decoupled>
class AdamOf : public mh::Optimizer {
public:
  struct Config {
    std::vector<double> betas{0.9, 0.95};
    double eps = 1e-8;
  };

  static void fields(mh::Fields<Config>& f) {
    f.add("betas", &Config::betas, "decay rates of the averages of gradients and of their squares");
    f.add("eps", &Config::eps, "added to the root of the averaged squares").above(0);
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

  AdamOf(const Config& config, const Args& args)
      : args_(args)
      , rule_{
            .kind = mh::UpdateRule::Kind::adam,
            .decoupled = Decoupled,
            .stochastic_rounding = args.stochastic_rounding,
            .beta1 = config.betas[0],
            .beta2 = config.betas[1],
            .eps = config.eps} {}

  [[nodiscard]] bool rounds_stochastically() const override { return true; }

  [[nodiscard]] std::vector<mh::StateSpec> state() const override {
    return {{"exp_avg", args_.state_dtype}, {"exp_avg_sq", args_.state_dtype}};
  }

  [[nodiscard]] bool finishes() const override { return true; }

  [[nodiscard]] bool takes_tensors() const override { return true; }

  void update(std::span<mh::UpdateItem> items, const mh::Update& update) const override {
    mh::update_fused(rule_, items, update);
  }

private:
  Args args_;
  mh::UpdateRule rule_;
};

} // namespace

MH_PLUGIN("org.megahost.adamw", "0.1.0", "Adam and AdamW", [](mh::Registry& r) {
  r.add<AdamOf<true>>("adamw", "Adam with decoupled weight decay");
  r.add<AdamOf<false>>("adam", "Adam; weight decay is added to the gradient");
});
