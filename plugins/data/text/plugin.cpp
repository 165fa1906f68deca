#define MH_PLUGIN_LICENSE "Apache-2.0"
#include "text.hpp"

#include <megahost/plugin.hpp>

MH_PLUGIN("org.megahost.text", "0.1.0", "Text files as a corpus", [](mh::Registry& r) {
  r.add<mh::text::TextCorpus>("text", "any text files, tokenised at start");
});
