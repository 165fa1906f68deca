#define MH_PLUGIN_LICENSE "Apache-2.0"
#include <megahost/optimizer.hpp>
#include <megahost/plugin.hpp>

namespace {

/// v = momentum v + (g + decay w);  w -= lr v,  or with Nesterov
/// w -= lr (g + decay w + momentum v), in one pass over all parameters.
///
/// Source:  Sutskever et al., "On the importance of initialization and momentum" (ICML 2013), in
///          the form of torch.optim.SGD
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

  Sgd(const Config& config, const Args& args)
      : args_(args)
      , rule_{
            .kind = mh::UpdateRule::Kind::sgd,
            .decoupled = false,
            .nesterov = config.nesterov,
            .stochastic_rounding = args.stochastic_rounding,
            .beta1 = config.momentum} {}

  [[nodiscard]] bool rounds_stochastically() const override { return true; }

  [[nodiscard]] std::vector<mh::StateSpec> state() const override {
    if (rule_.beta1 == 0) {
      return {};
    }
    return {{"momentum", args_.state_dtype}};
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

MH_PLUGIN("org.megahost.sgd", "0.1.0", "stochastic gradient descent", [](mh::Registry& r) {
  r.add<Sgd>("sgd", "gradient descent with momentum");
});
