#define MH_PLUGIN_LICENSE "Apache-2.0"
#include "indexed.hpp"

#include <megahost/plugin.hpp>

MH_PLUGIN("org.megahost.indexed", "0.1.0", "Tokenised corpora", [](mh::Registry& r) {
  r.add<mh::indexed::IndexedCorpus>("indexed", "tokenised corpora: Megatron's .bin/.idx, blended");
});
