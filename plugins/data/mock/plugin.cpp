#define MH_PLUGIN_LICENSE "Apache-2.0"
#include "mock.hpp"

#include <megahost/plugin.hpp>

MH_PLUGIN("org.megahost.mock", "0.1.0", "Made-up data", [](mh::Registry& r) {
  r.add<mh::MockCorpus>("mock", "made-up sequences that can be learnt, for tests and benchmarks");
});
