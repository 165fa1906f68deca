#define MH_PLUGIN_LICENSE "Apache-2.0"
#include <megahost/plugin.hpp>
#include <megahost/recompute.hpp>

#include <string>

namespace {

/// Source:  arXiv:1604.06174; the two methods as in Megatron-LM (--recompute-method)
class Full : public mh::RecomputePolicy {
public:
  struct Config {
    std::string method = "uniform";
    int64_t layers = 1;
  };

  static void fields(mh::Fields<Config>& f) {
    f.add(
         "method",
         &Config::method,
         "uniform: every block runs again, `layers` at a time; block: the first `layers` of a "
         "stage "
         "do, the others keep everything"
    )
        .one_of({"uniform", "block"});
    f.add(
         "layers", &Config::layers, "blocks of a group (uniform), or blocks that run again (block)"
    )
        .at_least(1);
  }

  static bool recomputes_blocks() { return true; }

  static std::vector<mh::Table> searched(const mh::SearchFacts&) { return {{}}; }

  static std::vector<mh::Table> changes(const mh::SearchFacts&, const mh::Value&) { return {{}}; }

  Full(const Config& config, const Args&)
      : uniform_(config.method == "uniform")
      , layers_(config.layers) {}

  [[nodiscard]] mh::Keep keep(int64_t layer) const override {
    if (uniform_) {
      return {.everything = false, .joined = layer % layers_ != 0};
    }
    return {.everything = layer >= layers_};
  }

private:
  bool uniform_;
  int64_t layers_;
};

} // namespace

MH_PLUGIN("org.megahost.recompute-full", "0.1.0", "whole blocks recomputed", [](mh::Registry& r) {
  r.add<Full>("full", "save blocks' inputs only and recompute the blocks in backward");
});
