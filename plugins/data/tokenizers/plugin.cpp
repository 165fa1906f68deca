#define MH_PLUGIN_LICENSE "Apache-2.0"
#include "tokenizers.hpp"

#include <megahost/plugin.hpp>

MH_PLUGIN("org.megahost.tokenizers", "0.1.0", "Tokenizers that need no file", [](mh::Registry& r) {
  r.add<mh::ByteTokenizer>("byte", "every byte is an id; 256 ids, no file, any text");
  r.add<mh::NullTokenizer>("null", "texts are ids in decimal already");
});
