#define MH_PLUGIN_LICENSE "Apache-2.0"
#include <megahost/plugin.hpp>
#include <megahost/recompute.hpp>

#include <string>
#include <vector>

namespace {

/// Source:  arXiv:2205.05198, section 5
class Selective : public mh::RecomputePolicy {
public:
  struct Config {
    std::vector<std::string> parts{"core_attention"};
  };

  static void fields(mh::Fields<Config>& f) {
    f.add("parts", &Config::parts, "parts of each block that are recomputed in backward")
        .parts({mh::kRecomputeParts.begin(), mh::kRecomputeParts.end()});
    f.check("parts", [](const Config& c) -> std::string {
      return c.parts.empty() ? "names no part: that is recompute.use = \"none\"" : "";
    });
  }

  static std::vector<mh::Table> searched(const mh::SearchFacts&) { return {{}}; }

  static std::vector<mh::Table> changes(const mh::SearchFacts&, const mh::Value&) {
    using Parts = mh::Value::Array;
    return {
        {},
        {{"parts", Parts{"core_attention", "norms"}}},
        {{"parts", Parts{"core_attention", "norms", "activations"}}}};
  }

  Selective(const Config& config, const Args&)
      : parts_(config.parts) {}

  [[nodiscard]] mh::Keep keep(int64_t) const override {
    return {.everything = true, .redo = parts_};
  }

private:
  std::vector<std::string> parts_;
};

} // namespace

MH_PLUGIN(
    "org.megahost.recompute-selective",
    "0.1.0",
    "named parts recomputed",
    [](mh::Registry& r) {
      r.add<Selective>("selective", "recompute named parts of each block in backward");
    }
);
