// An entry that was written by hand and names no pin.
#include "../fixtures/fixed.hpp"

extern "C" {
extern MH_API const mh_plugin mh_plugin_entry;
constinit const mh_plugin mh_plugin_entry = {
    sizeof(mh_plugin),
    MH_PLUGIN_API,
    "org.megahost.loose",
    "0.1.0",
    "MIT",
    "Without a pin",
    MH_ABI_TAG,
    "by hand",
    nullptr,
    [](mh::Registry& r) { r.add<Fixed>("fixed", "the same rate at every step"); },
};
}
