#define MH_PLUGIN_LICENSE "Apache-2.0"
#include <megahost/error.hpp>
#include <megahost/plugin.hpp>
#include <megahost/strategy.hpp>

#include <string>

namespace {

/// Every rank of dp holds the whole model and sees its own samples.
class Data : public mh::Strategy {
public:
  struct Config {};

  static void fields(mh::Fields<Config>&) {}

  Data(const Config&, const Args& args) {
    if (args.shape.dp > 1) {
      throw mh::Error(
          "parallel.data is " + std::to_string(args.shape.dp) +
              ", but this version of the data strategy trains on one rank",
          "set parallel.data = 1; training over several ranks arrives with a later version"
      );
    }
  }

  void rules(mh::Rules& rules) const override {
    rules.tokens.push_back({mh::axis::batch, mh::MeshAxis::dp});
  }
};

} // namespace

MH_PLUGIN("org.megahost.data-parallel", "0.1.0", "data parallelism", [](mh::Registry& r) {
  r.add<Data>("data", "each rank trains on its own samples: batch -> dp");
});
