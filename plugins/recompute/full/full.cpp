#define MH_PLUGIN_LICENSE "Apache-2.0"
#include <megahost/plugin.hpp>
#include <megahost/recompute.hpp>

namespace {

/// Source:  arXiv:1604.06174
class Full : public mh::RecomputePolicy {
public:
  struct Config {};

  static void fields(mh::Fields<Config>&) {}

  Full(const Config&, const Args&) {}

  [[nodiscard]] mh::Keep keep(int64_t) const override { return {.everything = false}; }
};

} // namespace

MH_PLUGIN(
    "org.megahost.recompute-full",
    "0.1.0",
    "whole blocks computed again",
    [](mh::Registry& r) {
      r.add<Full>("full", "keep each block's input only and run the block again in backward");
    }
);
