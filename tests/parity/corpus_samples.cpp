// Samples of tokenised corpora for tests/parity/megatron_order.py and megatron_masked.py: reads one
// JSON object a line, {"corpus", "data", "arrays", "seq", "encoder", "split", "wanted", "seed",
// "micro", "ranks", "tokens", "eod", "pad", "bos", ..., "extra", "samples", "out"}, or of a
// tokenizer's ids the section "tokenizer" of a recipe that uses wordpiece, and writes to the file
// `out` int64s: for each split its size (-1: it has none, and standard output says why),
// then of each sample asked for the arrays that it has. With "index" instead of "data" it writes
// Megatron's three arrays of one corpus into that folder.

#include "core/language/read.hpp"
#include "plugins/data/indexed/index_files.hpp"
#include "plugins/data/indexed/indexed.hpp"
#include "plugins/data/masked/bert.hpp"
#include "plugins/data/masked/spans.hpp"
#include "plugins/data/wordpiece/wordpiece.hpp"

#include <megahost/tokenizer.hpp>

#include <fstream>
#include <iostream>
#include <memory>

namespace {

using mh::indexed::IndexedCorpus;

/// A tokenizer of the ids and tokens that a line says.
class Told final : public mh::Tokenizer {
public:
  explicit Told(const mh::Table& line)
      : eod_(id_of(line, "eod")) {
    for (const auto& [name, id] :
         {std::pair("pad", &ids_.pad),
          std::pair("bos", &ids_.bos),
          std::pair("eos", &ids_.eos),
          std::pair("cls", &ids_.cls),
          std::pair("sep", &ids_.sep),
          std::pair("mask", &ids_.mask)}) {
      *id = id_of(line, name);
    }
    if (const mh::Value* extra = line.find("extra")) {
      for (const mh::Value& id : extra->as_array()) {
        ids_.extra.push_back(static_cast<int32_t>(id.as_integer()));
      }
    }
    if (const mh::Value* tokens = line.find("tokens")) {
      for (const mh::Value& token : tokens->as_array()) {
        tokens_.push_back(token.as_string());
      }
    }
  }

  [[nodiscard]] int64_t vocab() const override {
    return tokens_.empty() ? 1 << 20 : std::ssize(tokens_);
  }

  [[nodiscard]] std::vector<int32_t> encode(std::string_view) const override { return {}; }

  [[nodiscard]] std::string decode(std::span<const int32_t>) const override { return ""; }

  [[nodiscard]] std::string token(int32_t id) const override {
    return tokens_.at(static_cast<size_t>(id));
  }

  [[nodiscard]] std::optional<int32_t> end_of_document() const override { return eod_; }

  [[nodiscard]] mh::SpecialIds special_ids() const override { return ids_; }

private:
  static std::optional<int32_t> id_of(const mh::Table& line, const char* name) {
    const mh::Value* value = line.find(name);
    return value == nullptr ? std::nullopt
                            : std::optional(static_cast<int32_t>(value->as_integer()));
  }

  std::optional<int32_t> eod_;
  mh::SpecialIds ids_;
  std::vector<std::string> tokens_;
};

template <class C>
std::unique_ptr<mh::Corpus> made(const mh::Table& line, const mh::Corpus::Args& args) {
  return std::make_unique<C>(mh::fields_of<C>().read(line.find("data")->as_table(), "data"), args);
}

std::unique_ptr<mh::Corpus> corpus_of(const mh::Table& line, const mh::Corpus::Args& args) {
  const mh::Value* name = line.find("corpus");
  return name == nullptr             ? made<IndexedCorpus>(line, args)
         : name->as_string() == "t5" ? made<mh::masked::SpanCorpus>(line, args)
                                     : made<mh::masked::BertCorpus>(line, args);
}

std::unique_ptr<mh::Tokenizer> tokenizer_of(const mh::Table& line) {
  using mh::wordpiece::WordPieceTokenizer;
  const mh::Value* section = line.find("tokenizer");
  if (section == nullptr) {
    return std::make_unique<Told>(line);
  }
  mh::Table options = section->as_table();
  options.erase("use");
  return std::make_unique<WordPieceTokenizer>(
      mh::fields_of<WordPieceTokenizer>().read(options, "tokenizer"), mh::Tokenizer::Args{}
  );
}

int64_t integer(const mh::Table& line, const char* name) {
  return line.find(name)->as_integer();
}

void write_samples(const mh::Table& line, std::ostream& out) {
  const auto tokenizer = tokenizer_of(line);
  mh::Corpus::Args args;
  args.tokenizer = tokenizer.get();
  args.seq_length = integer(line, "seq");
  args.vocab = tokenizer->vocab();
  args.seed = static_cast<uint64_t>(integer(line, "seed"));
  args.micro = integer(line, "micro");
  args.data_ranks = integer(line, "ranks");
  double sum = 0;
  for (size_t i = 0; i < 3; ++i) {
    args.split[i] = line.find("split")->as_array()[i].as_number();
    args.wanted[i] = line.find("wanted")->as_array()[i].as_integer();
    sum += args.split[i];
  }
  for (double& share : args.split) {
    share /= sum;
  }
  if (const mh::Value* encoder = line.find("encoder")) {
    args.sequences = {{"encoder", encoder->as_integer()}};
  }
  std::vector<std::string> names{"tokens", "labels", "loss_mask", "positions"};
  if (const mh::Value* arrays = line.find("arrays")) {
    names.clear();
    for (const mh::Value& name : arrays->as_array()) {
      names.push_back(name.as_string());
    }
  }
  const auto corpus = corpus_of(line, args);
  const auto put = [&](int64_t number) {
    out.write(reinterpret_cast<const char*>(&number), sizeof(number));
  };
  for (const mh::Split split : {mh::Split::train, mh::Split::valid, mh::Split::test}) {
    put(corpus->size(split));
    const int64_t most = std::min(corpus->size(split), integer(line, "samples"));
    for (int64_t i = 0; i < most; ++i) {
      const mh::Sample sample = corpus->sample(split, i);
      for (const std::string& name : names) {
        if (const auto array = sample.find(name); array != sample.end()) {
          std::visit(
              [&](const auto& values) {
                for (const auto value : values) {
                  put(static_cast<int64_t>(value));
                }
              },
              array->second
          );
        }
      }
    }
  }
}

void write_index(const mh::Table& line) {
  const mh::IndexedDataset dataset(line.find("prefix")->as_string());
  const mh::Value* samples = line.find("num_samples");
  const mh::indexed::IndexTerms terms{
      .first = static_cast<uint64_t>(integer(line, "first")),
      .last = static_cast<uint64_t>(integer(line, "last")),
      .samples = samples == nullptr ? std::nullopt : std::optional(samples->as_integer()),
      .seq = integer(line, "seq"),
      .seed = static_cast<uint32_t>(integer(line, "seed")),
      .drop_last_partial = line.find("drop")->as_boolean(),
      .extra_token = line.find("extra")->as_boolean()};
  std::vector<int32_t> lengths;
  for (uint64_t i = 0; i < dataset.sequences(); ++i) {
    lengths.push_back(static_cast<int32_t>(dataset.length(i)));
  }
  const uint64_t tokens = dataset.begin(terms.last) - dataset.begin(terms.first);
  const auto sizes = mh::indexed::index_sizes(terms, static_cast<int64_t>(tokens));
  if (!sizes) {
    std::cout << "none" << std::endl;
    return;
  }
  const std::string folder = line.find("index")->as_string();
  std::filesystem::create_directories(folder);
  mh::indexed::write_index_files(
      folder,
      {.prefix = dataset.prefix(), .split = "train", .shares = {}, .corpus_tokens = tokens},
      terms,
      mh::indexed::make_index(terms, *sizes, lengths)
  );
  std::cout << (sizes->before_last ? "separate" : "together") << std::endl;
}

} // namespace

int main() {
  for (std::string text; std::getline(std::cin, text);) {
    const mh::Value value =
        mh::read_json(std::make_shared<const mh::Source>(mh::Source{"case", text, "case"}));
    const mh::Table& line = value.as_table();
    try {
      if (line.find("index") != nullptr) {
        write_index(line);
        continue;
      }
      std::ofstream out(line.find("out")->as_string(), std::ios::binary);
      write_samples(line, out);
      out.close();
      std::cout << "ok" << std::endl;
    } catch (const mh::Error& error) {
      std::cout << "error: " << error.what() << std::endl;
    }
  }
  return 0;
}
