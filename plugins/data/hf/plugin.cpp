#define MH_PLUGIN_LICENSE "Apache-2.0"
#include "hf.hpp"

#include <megahost/plugin.hpp>

MH_PLUGIN("org.megahost.hf", "0.1.0", "Hugging Face's tokenizer.json", [](mh::Registry& r) {
  r.add<mh::hf::HfTokenizer>(
      "hf", "Hugging Face's tokenizer.json: Llama, Qwen, DeepSeek, GPT-2, Gemma, T5, BERT ..."
  );
});
