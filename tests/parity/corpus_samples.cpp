// Samples of tokenised corpora for tests/parity/megatron_order.py: reads one JSON object a line,
// {"data", "seq", "split", "wanted", "seed", "micro", "ranks", "eod", "pad", "samples", "out"}, and
// writes to the file `out` int64s: for each split its size (-1: it has none, and standard output
// says why), then of each sample asked for tokens, labels, loss mask and, with resets, positions.
// With "index" instead of "data" it writes Megatron's three arrays of one corpus into that folder.

#include "core/language/read.hpp"
#include "plugins/data/indexed/index_files.hpp"
#include "plugins/data/indexed/indexed.hpp"

#include <megahost/tokenizer.hpp>

#include <fstream>
#include <iostream>

namespace {

using mh::indexed::IndexedCorpus;

/// A tokenizer of two ids only.
class Ends final : public mh::Tokenizer {
public:
  explicit Ends(const mh::Table& line)
      : eod_(id_of(line, "eod"))
      , pad_(id_of(line, "pad")) {}

  [[nodiscard]] int64_t vocab() const override { return 1 << 20; }

  [[nodiscard]] std::vector<int32_t> encode(std::string_view) const override { return {}; }

  [[nodiscard]] std::string decode(std::span<const int32_t>) const override { return ""; }

  [[nodiscard]] std::optional<int32_t> end_of_document() const override { return eod_; }

  [[nodiscard]] mh::SpecialIds special_ids() const override {
    mh::SpecialIds ids;
    ids.pad = pad_;
    return ids;
  }

private:
  static std::optional<int32_t> id_of(const mh::Table& line, const char* name) {
    const mh::Value* value = line.find(name);
    return value == nullptr ? std::nullopt
                            : std::optional(static_cast<int32_t>(value->as_integer()));
  }

  std::optional<int32_t> eod_, pad_;
};

int64_t integer(const mh::Table& line, const char* name) {
  return line.find(name)->as_integer();
}

void write_samples(const mh::Table& line, std::ostream& out) {
  const Ends tokenizer(line);
  mh::Corpus::Args args;
  args.tokenizer = &tokenizer;
  args.seq_length = integer(line, "seq");
  args.vocab = tokenizer.vocab();
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
  const IndexedCorpus corpus(
      mh::fields_of<IndexedCorpus>().read(line.find("data")->as_table(), "data"), args
  );
  const auto put = [&](int64_t number) {
    out.write(reinterpret_cast<const char*>(&number), sizeof(number));
  };
  for (const mh::Split split : {mh::Split::train, mh::Split::valid, mh::Split::test}) {
    put(corpus.size(split));
    const int64_t most = std::min(corpus.size(split), integer(line, "samples"));
    for (int64_t i = 0; i < most; ++i) {
      const mh::Sample sample = corpus.sample(split, i);
      for (const char* name : {"tokens", "labels", "loss_mask", "positions"}) {
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
