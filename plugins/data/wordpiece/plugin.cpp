#define MH_PLUGIN_LICENSE "Apache-2.0"
#include "wordpiece.hpp"

#include <megahost/plugin.hpp>

MH_PLUGIN("org.megahost.wordpiece", "0.1.0", "BERT's tokenizer", [](mh::Registry& r) {
  r.add<mh::wordpiece::WordPieceTokenizer>(
      "wordpiece", "BERT's vocab.txt: words, and the longest pieces of each"
  );
});
