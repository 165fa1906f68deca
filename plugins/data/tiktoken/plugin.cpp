#define MH_PLUGIN_LICENSE "Apache-2.0"
#include "tiktoken.hpp"

#include <megahost/plugin.hpp>

MH_PLUGIN("org.megahost.tiktoken", "0.1.0", "Tokenizers by rank", [](mh::Registry& r) {
  r.add<mh::tiktoken::TiktokenTokenizer>(
      "tiktoken", "byte pairs by rank: Llama 3 and 4, Qwen, OpenAI's, Mistral's tekken"
  );
});
