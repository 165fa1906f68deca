#define MH_PLUGIN_LICENSE "Apache-2.0"
#include "gpt2.hpp"

#include <megahost/plugin.hpp>

MH_PLUGIN("org.megahost.gpt2", "0.1.0", "GPT-2's tokenizer", [](mh::Registry& r) {
  r.add<mh::gpt2::Gpt2Tokenizer>(
      "gpt2", "byte-level byte-pair encoding: vocab.json and merges.txt"
  );
});
