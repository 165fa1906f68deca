#define MH_PLUGIN_LICENSE "Apache-2.0"
#include "storage.hpp"

#include <megahost/plugin.hpp>

MH_PLUGIN(
    "org.megahost.msc",
    "0.1.0",
    "Profiles of NVIDIA's Multi-Storage Client",
    [](mh::Registry& r) {
      r.add<msc::Msc>(
          "msc",
          "msc://PROFILE/PATH: the place that a configuration of Multi-Storage Client gives a name"
      );
    }
)
