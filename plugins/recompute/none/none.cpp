#define MH_PLUGIN_LICENSE "Apache-2.0"
#include <megahost/plugin.hpp>
#include <megahost/recompute.hpp>

namespace {

class None : public mh::RecomputePolicy {
public:
  struct Config {};

  static void fields(mh::Fields<Config>&) {}

  static std::vector<mh::Table> searched(const mh::SearchFacts&) { return {{}}; }

  static std::vector<mh::Table> changes(const mh::SearchFacts&, const mh::Value&) { return {{}}; }

  None(const Config&, const Args&) {}

  [[nodiscard]] mh::Keep keep(int64_t) const override { return {}; }
};

} // namespace

MH_PLUGIN("org.megahost.recompute-none", "0.1.0", "no recomputation", [](mh::Registry& r) {
  r.add<None>("none", "save every activation that backward needs");
});
