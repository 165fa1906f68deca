/// Commands on corpora.

#include "core/cli/tables/tables.hpp"

namespace mh {

namespace {

const Option kOutputPrefix{
    "--output", "PREFIX", "where the corpus goes; also in a store, by way of TMPDIR"};
const Option kForceOutput{"--force", "", "replaces a corpus that is there"};
const Option kStoreSet{
    "--set",
    "storage.KEY=VALUE",
    "an option of the storage that a path is in, as in a recipe; also data.cache, the folder for "
    "copies of what is read of it, and data.cache_limit",
    true};
const Option kTokenizerAndStoreSet{
    "--set",
    "tokenizer.KEY=VALUE",
    "an option of the tokenizer, or of the storage that a path is in (storage.KEY), as `megahost "
    "plugins show` lists them; also data.cache, the folder for copies of what is read of a store, "
    "and data.cache_limit",
    true};
/// The prefix of commands that read corpora: in a store, copies of them are read.
const char* const kOnePrefix =
    "a pair PREFIX.bin and PREFIX.idx, without the ending; also in a store";

} // namespace

std::vector<Command> data_commands() {
  return {
      {
          "data prepare",
          "Data",
          "tokenises documents into a corpus for `data.use = \"indexed\"`",
          "JSON lines (.jsonl, .ndjson, .json or -, the standard input) and MDS hold a document in each "
          "line, parquet and Arrow files (.parquet, .arrow; `./megahost arrow` fetches what reads them) "
          "in each row; any other file is one document; what is no column file may be compressed (.gz, "
          ".zst, .xz, .bz2). A folder gives every file in it. The result is a pair PREFIX_KEY_document.bin and .idx "
          "for each key, in Megatron's format, the same bytes for any number of workers. It gets its "
          "name when it is complete; a preparation that was ended goes on where it was when it is "
          "started again.",
          {{"INPUT...",
            "files, folders, patterns, and @FILE, which lists them one a line; also files and folders of a store, such as s3://bucket/texts"}},
          {
              {"--output", "PREFIX", "where the corpus goes, such as data/corpus"},
              kTokenizer,
              kTokenizerOf,
              {"--json-key",
               "KEY",
               "member of each JSON object, or column, that holds text (text)",
               true},
              {"--format",
               "FORMAT",
               "what all inputs are, whatever their names; tokens: ids, as nanoGPT, llm.c and OLMo "
               "keep them",
               false,
               {"jsonl", "text", "tokens"}},
              {"--token-type",
               "TYPE",
               "type of ids in files of --format tokens that do not say it",
               false,
               {"uint8", "uint16", "uint32", "int32", "int64"}},
              {"--eod",
               "ID",
               "id that ends a document of --format tokens (the tokenizer's; else a file is one)"},
              {"--template",
               "NAME",
               "how `messages` (lists of role and content), or a prompt and its response, which two "
               "--json-key name, are written; PREFIX_messages_loss (PREFIX_RESPONSE_loss) says which "
               "tokens are an assistant's, for `data.supervised`",
               false,
               {"chatml", "llama3"}},
              {"--sentences",
               "",
               "makes each sentence a sequence of its document, for samples of sentences (BERT); the "
               "files are PREFIX_KEY_sentence"},
              {"--append-eod", "", "ends each document with the tokenizer's end of document"},
              {"--on-error",
               "WHAT",
               "at a document or file that cannot be read: refuse ends, skip names it and goes on, "
               "replace names bytes that are no UTF-8 and puts U+FFFD in their place (refuse)",
               false,
               {"refuse", "skip", "replace"}},
              {"--workers", "N", "threads that tokenise (one for each core)"},
              {"--shard",
               "MIB",
               "input after which what is done is kept, in PREFIX.preparing, for a preparation that "
               "is ended (64)"},
              {"--force", "", "replaces a corpus that is there"},
              kTokenizerAndStoreSet,
              kPlugin,
          },
          {
              {"megahost data prepare corpus.jsonl --output data/corpus --tokenizer gpt2 --set "
               "tokenizer.vocab=vocab.json --set tokenizer.merges=merges.txt --append-eod",
               ""},
              {"megahost data prepare book.txt articles/ --output data/mine --recipe my.toml",
               "with the recipe's tokenizer"},
              {"megahost data prepare 'shards/*.jsonl.zst' --output data/corpus --tokenizer byte",
               ""},
              {"megahost data prepare train.bin --format tokens --token-type uint16 --eod 50256 "
               "--output data/owt",
               "nanoGPT's file"},
          },
      },
      {
          "data inspect",
          "Data",
          "what a tokenised corpus holds: documents, tokens, lengths",
          "With a tokenizer, tokens are shown as text too.",
          {{"PREFIX", kOnePrefix}},
          {
              {"--document", "N", "the tokens of one document, counted from 0"},
              {"--decode", "N", "the text of the first N documents; needs a tokenizer"},
              {"--svg", "FILE", "the lengths as a picture"},
              {"--tokens", "N", "how many tokens of the first document are shown (64)"},
              kTokenizer,
              kTokenizerOf,
              kTokenizerAndStoreSet,
              kPlugin,
              kJson,
          },
          {
              {"megahost data inspect data/corpus_text_document", ""},
              {"megahost data inspect data/corpus_text_document --document 7 --recipe my.toml", ""},
          },
      },
      {
          "data merge",
          "Data",
          "makes one corpus of several, their documents one after the other",
          "",
          {{"PREFIX...",
            "pairs PREFIX.bin and PREFIX.idx that one tokenizer has made; also in a store"}},
          {kOutputPrefix, kForceOutput, kStoreSet, kPlugin},
          {{"megahost data merge data/a_text_document data/b_text_document --output data/ab", ""},
           {"megahost data merge data/a_text_document --output s3://bucket/a",
            "puts a corpus in a store"}},
      },
      {
          "data split",
          "Data",
          "cuts a corpus into train, validation and test: PREFIX_train, _valid and _test",
          "Each gets a range of the documents, as `data.split` would cut it.",
          {{"PREFIX", kOnePrefix}},
          {kOutputPrefix,
           {"--shares", "A,B,C", "how much each gets, in any unit (98,1,1)"},
           kForceOutput,
           kStoreSet,
           kPlugin},
          {{"megahost data split data/a_text_document --shares 99,1,0 --output data/a", ""}},
      },
      {
          "data shuffle",
          "Data",
          "writes the documents of a corpus in random order",
          "Training shuffles anyway; this is for programs that read in order, and before a split.",
          {{"PREFIX", kOnePrefix}},
          {kOutputPrefix,
           {"--seed", "N", "seed of the order (1234)"},
           kForceOutput,
           kStoreSet,
           kPlugin},
          {{"megahost data shuffle data/a_text_document --output data/shuffled", ""}},
      },
      {
          "data dedup-exact",
          "Data",
          "leaves out documents whose tokens are those of one before",
          "It holds a hash of 16 bytes of each document that stays, in some 60 bytes of memory.",
          {{"PREFIX", kOnePrefix}},
          {kOutputPrefix, kForceOutput, kStoreSet, kPlugin},
          {{"megahost data dedup-exact data/a_text_document --output data/once", ""}},
      },
  };
}

} // namespace mh
