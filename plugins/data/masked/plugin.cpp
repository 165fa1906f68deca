#define MH_PLUGIN_LICENSE "Apache-2.0"
#include "bert.hpp"
#include "spans.hpp"

#include <megahost/plugin.hpp>

MH_PLUGIN("org.megahost.masked", "0.1.0", "Texts with hidden tokens", [](mh::Registry& r) {
  r.add<mh::masked::BertCorpus>("bert", "pairs of passages with hidden tokens, for BERT");
  r.add<mh::masked::SpanCorpus>("t5", "texts with holes and what was in them, for T5");
});
