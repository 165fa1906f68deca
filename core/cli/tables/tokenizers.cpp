/// Commands on tokenizers.

#include "core/cli/tables/tables.hpp"

namespace mh {

std::vector<Command> tokenizer_commands() {
  return {
      {
          "tokenizer encode",
          "Data",
          "shows the tokens of a text",
          "A line for each token: its id, and the token as the vocabulary writes it, so that "
          "blanks, pieces and special tokens can be seen. Name a tokenizer and its files with "
          "--tokenizer and --set, or take a recipe's with --recipe.",
          {{"TEXT", "the text; - is the standard input"}},
          {
              kTokenizer,
              kTokenizerOf,
              kTokenizerSet,
              {"--ids", "", "the ids alone, on one line"},
              kPlugin,
              kJson,
          },
          {
              {"megahost tokenizer encode \"Hello world\" --tokenizer hf --set "
               "tokenizer.path=Meta-Llama-3-8B",
               ""},
              {"megahost tokenizer encode - --recipe my.toml --ids < page.txt", ""},
          },
      },
      {
          "tokenizer decode",
          "Data",
          "shows the text of ids",
          "Ids are separated by blanks or commas. Each line of the standard input is a text of its "
          "own, and with --json each text is a JSON string on its line.",
          {{"ID...", "ids; - is the standard input"}},
          {kTokenizer, kTokenizerOf, kTokenizerSet, kPlugin, kJson},
          {
              {"megahost tokenizer decode 9906 1917 --recipe my.toml", ""},
              {"megahost tokenizer encode \"Hello\" --recipe my.toml --ids | megahost tokenizer "
               "decode - --recipe my.toml",
               "what comes back of a text"},
          },
      },
      {
          "tokenizer inspect",
          "Data",
          "what a tokenizer has: ids, special tokens, whether texts come back",
          "The number of ids is what a model's embedding must have at least. Special tokens are "
          "those that the tokenizer's files name: bos, eos, pad, unk, mask, cls, sep, and sentinels "
          "such as T5's.",
          {},
          {kTokenizer, kTokenizerOf, kTokenizerSet, kPlugin, kJson},
          {{"megahost tokenizer inspect --tokenizer sentencepiece --set "
            "tokenizer.path=tokenizer.model",
            ""}},
      },
  };
}

} // namespace mh
