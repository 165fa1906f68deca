// Tensor parallelism of feed-forward layers alone: their hidden units are split over the ranks of
// tp, attention is not. The core derives shapes, collectives and gradient sums from the rule.

#define MH_PLUGIN_LICENSE "MIT"
#include <megahost/error.hpp>
#include <megahost/plugin.hpp>
#include <megahost/strategy.hpp>

namespace {

class @Name@ : public mh::Strategy {
public:
  struct Config {
    bool vocab = false;
  };

  // Each field is an option, checked and documented.
  static void fields(mh::Fields<Config>& f) {
    f.add("vocab", &Config::vocab, "split the vocabulary too");
  }

  @Name@(const Config& config, const Args& args)
      : config_(config) {
    if (args.shape.ep > 1) {
      throw mh::Error(
          "the strategy @name@ does not know experts, but parallel.expert is " +
              std::to_string(args.shape.ep),
          "set parallel.expert = 1"
      );
    }
  }

  // Which logical axes lie along which mesh axis. Models name their axes (megahost/axis.hpp) and
  // never a rank; a mesh axis of one rank splits nothing.
  void rules(mh::Rules& rules) const override {
    rules.features.push_back({mh::axis::mlp, mh::MeshAxis::tp});
    if (config_.vocab) {
      rules.features.push_back({mh::axis::vocab, mh::MeshAxis::tp});
    }
  }

private:
  Config config_;
};

} // namespace

MH_PLUGIN("@id@", "0.1.0", "A plugin with a parallel strategy", [](mh::Registry& registry) {
  registry.add<@Name@>("@name@", "feed-forward layers split over tp: mlp -> tp");
})
