#define MH_PLUGIN_LICENSE "Apache-2.0"
#include "sentencepiece.hpp"

#include <megahost/plugin.hpp>

MH_PLUGIN("org.megahost.sentencepiece", "0.1.0", "SentencePiece's models", [](mh::Registry& r) {
  r.add<mh::sentencepiece::SentencePieceTokenizer>(
      "sentencepiece", "SentencePiece's .model files, BPE and Unigram: Llama 2, Mistral, T5, Gemma"
  );
});
