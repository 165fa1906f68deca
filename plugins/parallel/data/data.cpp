#define MH_PLUGIN_LICENSE "Apache-2.0"
#include <megahost/plugin.hpp>
#include <megahost/strategy.hpp>

namespace {

/// Every rank of dp holds the whole model and sees its own samples.
class Data : public mh::Strategy {
public:
  struct Config {};

  static void fields(mh::Fields<Config>&) {} // parallel.data is the core's

  static bool in_force(const Config&) { return true; }

  Data(const Config&, const Args&) {}

  void rules(mh::Rules& rules) const override {
    rules.tokens.push_back({mh::axis::batch, mh::MeshAxis::dp});
  }
};

} // namespace

MH_PLUGIN("org.megahost.data-parallel", "0.1.0", "data parallelism", [](mh::Registry& r) {
  r.add<Data>("data", "each rank trains on its own samples: batch -> dp");
});
