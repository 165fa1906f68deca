/// Commands on corpora.

#include "core/cli/tables/tables.hpp"

namespace mh {

std::vector<Command> data_commands() {
  return {
      {
          "data prepare",
          "Data",
          "tokenises documents into a corpus for `data.use = \"indexed\"`",
          "JSON lines (.jsonl, .ndjson, .json or -, the standard input) hold a document in each "
          "line; any other file is one document; of a folder, every file in it is taken. The "
          "result is a pair PREFIX_KEY_document.bin and .idx for each key, in Megatron's format, "
          "the same bytes for any number of workers. It gets its name when it is complete.",
          {{"INPUT...", "files and folders"}},
          {
              {"--output", "PREFIX", "where the corpus goes, such as data/corpus"},
              kTokenizer,
              kTokenizerOf,
              {"--json-key", "KEY", "member of each JSON object that holds text (text)", true},
              {"--format",
               "FORMAT",
               "what all inputs are, whatever their names",
               false,
               {"jsonl", "text"}},
              {"--append-eod", "", "ends each document with the tokenizer's end of document"},
              {"--skip-bad", "", "leaves out documents that cannot be read, and counts them"},
              {"--workers", "N", "threads that tokenise (one for each core)"},
              {"--force", "", "replaces a corpus that is there"},
              kTokenizerSet,
              kPlugin,
          },
          {
              {"megahost data prepare corpus.jsonl --output data/corpus --tokenizer gpt2 --set "
               "tokenizer.vocab=vocab.json --set tokenizer.merges=merges.txt --append-eod",
               ""},
              {"megahost data prepare book.txt articles/ --output data/mine --recipe my.toml",
               "with the recipe's tokenizer"},
              {"zcat corpus.jsonl.gz | megahost data prepare - --output data/corpus --tokenizer "
               "byte",
               ""},
          },
      },
      {
          "data inspect",
          "Data",
          "what a tokenised corpus holds: documents, tokens, lengths",
          "With a tokenizer, tokens are shown as text too.",
          {{"PREFIX", "a pair PREFIX.bin and PREFIX.idx, without the ending"}},
          {
              {"--document", "N", "the tokens of one document, counted from 0"},
              {"--tokens", "N", "how many tokens of the first document are shown (64)"},
              kTokenizer,
              kTokenizerOf,
              kTokenizerSet,
              kPlugin,
              kJson,
          },
          {
              {"megahost data inspect data/corpus_text_document", ""},
              {"megahost data inspect data/corpus_text_document --document 7 --recipe my.toml", ""},
          },
      },
  };
}

} // namespace mh
