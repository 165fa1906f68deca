#include "plugins/data/masked/bert.hpp"
#include "plugins/data/masked/spans.hpp"
#include "plugins/data/tokenizers/tokenizers.hpp"
#include "temporary_corpora.hpp"

#include <megahost/error.hpp>

#include <doctest/doctest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <numeric>
#include <set>

namespace masked_tests {

namespace fs = std::filesystem;
using mh::Split;
using Floats = std::vector<float>;

namespace {

constexpr int64_t kPad = 256, kEos = 257, kCls = 258, kSep = 259, kMask = 260, kFirstExtra = 261;

/// A folder of texts that goes when the test ends.
class Texts {
public:
  Texts(int files, int lines) {
    std::string name = (fs::temp_directory_path() / "megahost-masked-XXXXXX").string();
    REQUIRE(mkdtemp(name.data()) != nullptr);
    path_ = name;
    for (int i = 0; i < files; ++i) {
      std::ofstream file(path_ / ("text" + std::to_string(i) + ".txt"), std::ios::binary);
      for (int line = 0; line < lines; ++line) {
        file << "file " << i << " line " << line << " ends_here.\n";
      }
    }
  }

  ~Texts() { fs::remove_all(path_); }

  Texts(const Texts&) = delete;
  Texts& operator=(const Texts&) = delete;

  [[nodiscard]] std::vector<std::string> paths() const { return {path_.string()}; }

private:
  fs::path path_;
};

const mh::ByteTokenizer& bytes() {
  static const mh::ByteTokenizer tokenizer({.special = true, .extra_ids = 16}, {});
  return tokenizer;
}

mh::Corpus::Args args_of(int64_t length, std::array<double, 3> split = {0.8, 0.2, 0}) {
  return {.tokenizer = &bytes(), .seq_length = length, .vocab = bytes().vocab(), .split = split};
}

const Ids& ids(const mh::Sample& sample, const char* name) {
  return array(sample, name);
}

const Floats& floats(const mh::Sample& sample, const char* name) {
  return std::get<Floats>(sample.find(name)->second);
}

template <class Config>
Config config_of(const Texts& texts) {
  Config config;
  config.paths = texts.paths();
  return config;
}

/// The text that a sample was made of: hidden tokens are their labels.
std::string text_of(const mh::Sample& sample) {
  std::string text;
  for (size_t i = 0; i < ids(sample, "tokens").size(); ++i) {
    const bool hidden = floats(sample, "loss_mask")[i] == 1;
    const int64_t id = hidden ? ids(sample, "labels")[i] : ids(sample, "tokens")[i];
    text += id < 256 ? std::string(1, static_cast<char>(id)) : id == kSep ? "|" : "";
  }
  return text;
}

} // namespace

TEST_CASE("bert's samples are two passages with hidden tokens") {
  const Texts texts(20, 30);
  const auto config = config_of<mh::masked::BertCorpus::Config>(texts);
  const auto args = args_of(96);
  const mh::masked::BertCorpus corpus(config, args);
  CHECK(corpus.size(Split::train) > 100);
  CHECK(corpus.size(Split::valid) > 20);
  double hidden = 0, all = 0, masked = 0, kept = 0, swapped = 0;
  std::set<std::string> seen;
  for (int64_t i = 0; i < corpus.size(Split::train); ++i) {
    const auto sample = corpus.sample(Split::train, i);
    REQUIRE((sample == corpus.sample(Split::train, i)));
    const auto& tokens = ids(sample, "tokens");
    const auto& labels = ids(sample, "labels");
    REQUIRE(tokens.size() == 96);
    CHECK(tokens[0] == kCls);
    const auto padding = static_cast<size_t>(std::ranges::count(ids(sample, "segments"), 0));
    CHECK(tokens[padding - 1] == kSep);
    const auto second = static_cast<size_t>(
        std::ranges::find(ids(sample, "token_types"), 1) - ids(sample, "token_types").begin()
    );
    CHECK(tokens[second - 1] == kSep);
    for (size_t at = 0; at < tokens.size(); ++at) {
      CHECK(ids(sample, "token_types")[at] == (at >= second && at < padding ? 1 : 0));
      CHECK((at < padding || tokens[at] == kPad));
      if (floats(sample, "loss_mask")[at] == 1) {
        CHECK(at < padding);
        CHECK(labels[at] < 256);
        ++hidden;
        masked += tokens[at] == kMask;
        kept += tokens[at] == labels[at];
      } else {
        CHECK(tokens[at] == labels[at]);
      }
    }
    all += static_cast<double>(padding) - 3;
    CHECK(floats(sample, "order_loss_mask")[0] == 1);
    CHECK(std::ranges::count(floats(sample, "order_loss_mask"), 1.0F) == 1);
    swapped += static_cast<double>(ids(sample, "order_labels")[0]);
    seen.insert(text_of(sample));
  }
  const auto count = static_cast<double>(corpus.size(Split::train));
  CHECK(hidden / all == doctest::Approx(0.15).epsilon(0.05));
  CHECK(masked / hidden == doctest::Approx(0.8).epsilon(0.05));
  CHECK(kept / hidden == doctest::Approx(0.1).epsilon(0.3));
  CHECK(swapped / count == doctest::Approx(0.5).epsilon(0.25));
  CHECK(static_cast<int64_t>(seen.size()) == corpus.size(Split::train)); // each passage once
  CHECK((corpus.sample(Split::train, 0) != corpus.sample(Split::train, corpus.size(Split::train))));
  auto other = args;
  other.seed = 7;
  const mh::masked::BertCorpus again(config, other);
  CHECK((again.sample(Split::train, 0) != corpus.sample(Split::train, 0)));
  CHECK((again.sample(Split::valid, 3) == corpus.sample(Split::valid, 3)));
}

TEST_CASE("a swapped pair is the passage with its halves exchanged") {
  const Texts texts(4, 40);
  auto config = config_of<mh::masked::BertCorpus::Config>(texts);
  config.short_seq_prob = 0;
  const mh::masked::BertCorpus corpus(config, args_of(80, {1, 0, 0}));
  for (int64_t i = 0; i < corpus.size(Split::train); ++i) {
    const auto sample = corpus.sample(Split::train, i);
    const std::string text = text_of(sample);
    const size_t middle = text.find('|');
    const std::string first = text.substr(0, middle);
    const std::string second = text.substr(middle + 1, text.size() - middle - 2);
    const auto line = [](const std::string& lines) {
      return std::stoi(lines.substr(lines.find("line ") + 5));
    };
    CHECK((line(first) > line(second)) == (ids(sample, "order_labels")[0] == 1));
  }
}

TEST_CASE("whole words are hidden as one, and pairs may come from elsewhere") {
  const Texts texts(20, 30);
  auto config = config_of<mh::masked::BertCorpus::Config>(texts);
  config.whole_words = true;
  config.max_ngram = 2;
  config.pair = "next";
  const mh::masked::BertCorpus corpus(config, args_of(96));
  const auto letter = [](int64_t id) {
    return id < 256 && (std::isalnum(static_cast<int>(id)) != 0 || id == '_');
  };
  int64_t apart = 0;
  for (int64_t i = 0; i < 100; ++i) {
    const auto sample = corpus.sample(Split::train, i);
    const auto& labels = ids(sample, "labels");
    const auto& mask = floats(sample, "loss_mask");
    for (size_t at = 1; at < labels.size(); ++at) {
      if (letter(labels[at]) && letter(labels[at - 1])) {
        CHECK(mask[at] == mask[at - 1]);
      }
    }
    apart += ids(sample, "order_labels")[0];
  }
  CHECK(apart > 30);
  CHECK(apart < 70);
  config.pair = "none";
  const mh::masked::BertCorpus alone(config, args_of(96));
  CHECK(std::ranges::count(floats(alone.sample(Split::train, 0), "order_loss_mask"), 1.0F) == 0);
  CHECK(std::ranges::count(ids(alone.sample(Split::train, 0), "token_types"), 1) == 0);
}

TEST_CASE("sequences of a tokenised corpus are sentences") {
  // Two documents: of three sentences, and of one that is longer than a sample.
  const Folder folder;
  mh::IndexedWriter writer(mh::file_system(), folder.path() / "prepared", mh::token_type_for(300));
  writer.add_document(
      std::vector<int32_t>{1, 2, 3, 4, 5, 6, 7, 8, 9}, std::vector<size_t>{3, 2, 4}
  );
  writer.add_document(std::vector<int32_t>(40, 11), std::vector<size_t>{40});
  writer.commit();
  mh::masked::BertCorpus::Config config;
  config.paths = {(folder.path() / "prepared").string()};
  config.short_seq_prob = 0;
  const mh::masked::BertCorpus corpus(config, args_of(15, {1, 0, 0}));
  CHECK(corpus.size(Split::train) == 1 + 4); // 9 tokens; 12 + 12 + 12 + 4
  bool found = false;
  for (int64_t i = 0; i < 5; ++i) {
    const auto sample = corpus.sample(Split::train, i);
    found |= std::ranges::count(ids(sample, "labels"), 7) == 1;
  }
  CHECK(found);
}

TEST_CASE("sizes of spans are t5x's") {
  // t5.data.preprocessors.random_spans_helper(512, 0.15, 3, 1) is (568, 114).
  const auto sizes = mh::masked::span_sizes(512, 0.15, 3);
  CHECK(sizes.text == 568);
  CHECK(sizes.encoder() == 512);
  CHECK(sizes.decoder() == 114);
  CHECK(mh::masked::span_sizes(3, 0.15, 3).encoder() <= 3);
}

TEST_CASE("t5's samples are texts with holes, and what was in them") {
  const Texts texts(20, 30);
  auto args = args_of(24);
  args.sequences = {{"encoder", 64}};
  const auto config = config_of<mh::masked::SpanCorpus::Config>(texts);
  const mh::masked::SpanCorpus corpus(config, args);
  const auto sizes = mh::masked::span_sizes(64, 0.15, 3);
  CHECK(corpus.size(Split::train) > 50);
  std::set<std::string> seen;
  for (int64_t i = 0; i < corpus.size(Split::train); ++i) {
    const auto sample = corpus.sample(Split::train, i);
    REQUIRE((sample == corpus.sample(Split::train, i)));
    const auto& encoder = ids(sample, "encoder_tokens");
    const auto& labels = ids(sample, "labels");
    const auto& tokens = ids(sample, "tokens");
    CHECK(tokens[0] == kPad);
    const auto written = static_cast<size_t>(std::ranges::count(floats(sample, "loss_mask"), 1.0F));
    CHECK(static_cast<int64_t>(written) == sizes.decoder());
    CHECK(labels[written - 1] == kEos);
    CHECK(std::equal(
        tokens.begin() + 1, tokens.begin() + static_cast<int64_t>(written), labels.begin()
    ));
    // Putting the spans back gives the text.
    std::map<int64_t, std::string> spans;
    int64_t sentinel = 0;
    for (size_t at = 0; at + 1 < written; ++at) {
      if (labels[at] >= kFirstExtra) {
        CHECK(labels[at] == kFirstExtra + static_cast<int64_t>(spans.size()));
        sentinel = labels[at];
        spans[sentinel];
      } else {
        spans[sentinel] += static_cast<char>(labels[at]);
      }
    }
    CHECK(static_cast<int64_t>(spans.size()) == sizes.spans);
    std::string text;
    for (const int64_t id : encoder) {
      text += id < 256            ? std::string(1, static_cast<char>(id))
              : id >= kFirstExtra ? spans.at(id)
                                  : "";
    }
    CHECK(static_cast<int64_t>(text.size()) == sizes.text);
    CHECK(text.find("line ") != std::string::npos);
    seen.insert(text);
  }
  CHECK(static_cast<int64_t>(seen.size()) == corpus.size(Split::train));
}

namespace {

/// Three documents of sentences; all tokens count on from 1.
std::string three_documents(const Folder& folder) {
  mh::IndexedWriter writer(mh::file_system(), folder.path() / "three", mh::token_type_for(300));
  int32_t next = 1;
  for (const std::vector<size_t>& lengths : {std::vector<size_t>{3, 2, 4}, {5, 5}, {6, 2, 3, 4}}) {
    std::vector<int32_t> ids(std::accumulate(lengths.begin(), lengths.end(), size_t{0}));
    std::iota(ids.begin(), ids.end(), next);
    next += static_cast<int32_t>(ids.size());
    writer.add_document(ids, lengths);
  }
  writer.commit();
  return folder.path() / "three";
}

mh::masked::SpanCorpus::Config megatron_spans(const Folder& folder) {
  mh::masked::SpanCorpus::Config config;
  config.order = "megatron";
  config.paths = {three_documents(folder)};
  config.mask_prob = 0.3;
  config.max_ngram = 2;
  return config;
}

mh::Corpus::Args span_args(int64_t encoder, int64_t length) {
  auto args = args_of(length, {1, 0, 0});
  args.sequences = {{"encoder", encoder}};
  args.wanted = {7, 0, 0};
  return args;
}

} // namespace

TEST_CASE("t5 in Megatron's order: samples of megatron-core 0.16.1") {
  const Folder folder;
  const mh::masked::SpanCorpus corpus(megatron_spans(folder), span_args(14, 16));
  CHECK(corpus.size(Split::train) == 9); // three epochs
  CHECK(corpus.evaluation() == mh::Corpus::Evaluation::onward);
  CHECK(corpus.summary() == "t5 in Megatron's order: 3 documents, 34 tokens, 9 samples of train");
  const auto filled = [](Ids ids, size_t size) {
    ids.resize(size);
    return ids;
  };
  const auto second = corpus.sample(Split::train, 1);
  CHECK(ids(second, "encoder_tokens") == filled({10, 11, 12, 13, 261, 16, 17, 262, 19}, 14));
  CHECK(ids(second, "encoder_segments") == Ids{0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1});
  CHECK(ids(second, "tokens") == filled({258, 261, 14, 15, 262, 18}, 16));
  CHECK(ids(second, "labels") == filled({261, 14, 15, 262, 18, 257}, 16));
  CHECK(std::ranges::count(floats(second, "loss_mask"), 1.0F) == 6);
  const auto third = corpus.sample(Split::train, 2 + 9); // the next epoch is the same
  CHECK(ids(third, "labels") == filled({261, 12, 13, 262, 17, 257}, 16));
}

TEST_CASE("Megatron's order of sentences refuses what it cannot do") {
  const Folder folder;
  const auto config = megatron_spans(folder);
  const auto fails = [](const auto& options, const mh::Corpus::Args& args, const char* sentence) {
    CHECK_THROWS_WITH_AS(
        mh::masked::SpanCorpus(options, args), doctest::Contains(sentence), mh::Error
    );
  };
  auto args = span_args(14, 16);
  args.seed = 2147483647;
  fails(config, args, "train.seed 2147483647 is more than");
  args = span_args(3, 16);
  fails(config, args, "no room for Megatron's samples of 2 tokens");
  const mh::masked::SpanCorpus narrow(config, span_args(14, 5));
  CHECK_THROWS_WITH_AS(
      (void)narrow.sample(Split::train, 1),
      doctest::Contains("2 spans, which need as many sentinels and 6 tokens of the decoder"),
      mh::Error
  );
  mh::masked::BertCorpus::Config bert;
  bert.order = "megatron";
  bert.paths = config.paths;
  CHECK_THROWS_WITH_AS(
      mh::masked::BertCorpus(bert, args_of(16)), doctest::Contains("[PAD] is 0"), mh::Error
  );
  auto blended = config;
  blended.paths.push_back(blended.paths.front());
  CHECK(mh::masked::check_samples(blended).find("needs their shares") != std::string::npos);
  blended.weights = {1, 0};
  CHECK(mh::masked::check_samples(blended) == "weights are greater than 0");
  blended.weights = {1};
  CHECK(mh::masked::check_samples(blended) == "there are 1 weights for 2 paths");
  blended.order = "megahost";
  CHECK(
      mh::masked::check_samples(blended).find("are of the order \"megatron\"") != std::string::npos
  );

  mh::IndexedWriter writer(mh::file_system(), folder.path() / "long", mh::token_type_for(300));
  writer.add_document(std::vector<int32_t>(600, 1), std::vector<size_t>{513, 87});
  writer.commit();
  auto too_long = config;
  too_long.paths = {(folder.path() / "long").string()};
  fails(too_long, span_args(14, 16), "none that Megatron takes a sample of");
}

TEST_CASE("corpora of hidden tokens refuse what they cannot do") {
  const Texts texts(2, 5);
  const auto config = config_of<mh::masked::BertCorpus::Config>(texts);
  const mh::ByteTokenizer plain({}, {});
  auto args = args_of(32);
  args.tokenizer = &plain;
  CHECK_THROWS_WITH_AS(
      mh::masked::BertCorpus(config, args), doctest::Contains("needs the special token"), mh::Error
  );
  const auto spans = config_of<mh::masked::SpanCorpus::Config>(texts);
  CHECK_THROWS_WITH_AS(
      mh::masked::SpanCorpus(spans, args_of(32)), doctest::Contains("has no encoder"), mh::Error
  );
  auto gone = config;
  gone.paths = {"/nowhere"};
  CHECK_THROWS_AS(mh::masked::BertCorpus(gone, args_of(32)), mh::Error);
  const mh::masked::BertCorpus corpus(config, args_of(32, {1, 0, 0}));
  CHECK_THROWS_WITH_AS(
      (void)corpus.sample(Split::test, 0),
      doctest::Contains("test split of the corpus is empty"),
      mh::Error
  );
}

} // namespace masked_tests
