#define MH_PLUGIN_LICENSE "Apache-2.0"
#include "ict.hpp"
#include "pairs.hpp"

#include <megahost/plugin.hpp>

MH_PLUGIN("org.megahost.retrieval", "0.1.0", "Queries and what answers them", [](mh::Registry& r) {
  r.add<mh::retrieval::IctCorpus>("ict", "sentences and the texts that they were taken out of");
  r.add<mh::retrieval::PairsCorpus>(
      "pairs", "queries, their contexts and hard negatives of a file"
  );
});
