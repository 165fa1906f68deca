#include "core/storage/file_system.hpp"
#include "plugins/data/indexed/index_files.hpp"
#include "plugins/data/indexed/indexed.hpp"
#include "plugins/data/indexed/legacy_random.hpp"
#include "temporary_corpora.hpp"

#include <megahost/error.hpp>
#include <megahost/registry.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <numeric>
#include <set>
#include <thread>

namespace megatron_tests {

using mh::Split;
using mh::indexed::IndexArray;
using mh::indexed::IndexedCorpus;
using mh::indexed::IndexTerms;
using mh::indexed::MegatronIndex;

namespace {

std::string numbers(const IndexArray& array) {
  std::string text;
  for (uint64_t i = 0; i < array.size(); ++i) {
    text += (i == 0 ? "" : " ") + std::to_string(array[i]);
  }
  return text;
}

/// Lengths 0 to 12.
std::vector<int32_t> twelve_lengths() {
  std::vector<int32_t> lengths;
  for (int32_t i = 0; i < 12; ++i) {
    lengths.push_back(i * 7 % 13);
  }
  return lengths;
}

MegatronIndex index_of(const IndexTerms& terms, const std::vector<int32_t>& lengths) {
  int64_t tokens = 0;
  for (uint64_t i = terms.first; i < terms.last; ++i) {
    tokens += lengths[i];
  }
  return make_index(terms, index_sizes(terms, tokens).value(), lengths);
}

IndexedCorpus::Config megatron(std::vector<std::string> paths) {
  auto fields = config(std::move(paths));
  fields.order = "megatron";
  return fields;
}

/// All samples of a split, as one text.
std::string all_tokens(const IndexedCorpus& corpus, Split split) {
  std::string text;
  for (int64_t i = 0; i < corpus.size(split); ++i) {
    const mh::Sample sample = corpus.sample(split, i);
    for (const int64_t id : array(sample, "tokens")) {
      text += std::to_string(id) + " ";
    }
  }
  return text;
}

} // namespace

TEST_CASE("Megatron's three arrays") {
  // megatron-core 0.16.1: _build_document_index, helpers.build_sample_idx, _build_shuffle_index.
  struct Case {
    IndexTerms terms;
    const char *documents, *samples, *shuffle;
  };

  const std::vector<Case> cases{
      {{0, 12, {}, 8, 1234U, true, true},
       "7 8 11 2 9 10 1 0 4 5 6 3",
       "0 0 0 8 2 2 2 10 4 5 5 2 6 5 9 4 11 0",
       "1 0 3 5 2 7 4 6"},
      {{0, 12, {}, 8, 1234U, false, true},
       "7 8 11 2 9 10 1 0 4 5 6 3",
       "0 0 0 8 2 2 2 10 4 5 5 2 6 5 9 4 11 0 11 7",
       "7 3 5 1 4 8 0 2 6"},
      {{0, 12, {}, 8, 7U, false, false},
       "7 10 2 5 0 1 11 8 3 6 9 4",
       "0 0 0 8 2 1 3 8 5 7 6 8 7 4 8 8 10 5 11 2",
       "1 2 5 3 0 4 6 7 8"},
      {{2, 9, {}, 5, 4294967295U, true, true},
       "3 7 2 8 6 4 5",
       "0 0 0 5 1 2 1 7 3 1 4 2 6 2 6 7",
       "3 4 5 0 1 2 6"},
      {{0, 12, 20, 8, 1234U, true, true},
       "7 4 2 3 1 6 5 4 0 8 1 9 10 10 8 2 11 9 5 11 0 6 7 3 4 7 1 10 9 3 8 6 11 5 0 2",
       "0 0 0 8 3 3 4 3 6 1 7 0 10 2 11 3 12 0 13 3 16 1 16 9 17 5 18 2 19 1 19 9 22 2 23 0 24 0 25 6 26 4 28 0 28 8 29 5 31 1 32 6 33 2",
       "6 9 0 5 8 14 4 7 10 11 13 1 12 15 2 3 16 25 19 20 18 23 17 21 22 24"},
      {{0, 12, 10, 8, 1234U, true, true},
       "7 8 11 2 9 10 1 0 4 5 6 3 7 11 2 3 1 9 5 4 0 8 6 10",
       "0 0 0 8 2 2 2 10 4 5 5 2 6 5 9 4 11 0 12 0 12 8 13 6 15 1 16 1 17 2 17 10 18 7 22 0",
       "6 4 1 5 3 0 2 7 15 13 12 9 8 16 11 10 14"},
      {{3, 8, 30, 4, 0U, true, true},
       "6 4 7 6 3 5 4 6 7 5 3 7 7 5 4 4 6 3 3 5",
       "0 0 1 1 2 3 2 7 3 1 4 2 4 6 5 2 5 6 6 1 8 0 8 4 8 8 9 2 9 6 10 1 10 5 11 1 11 5 11 9 12 3 12 7 13 1 13 5 14 0 16 0 17 1 17 5 18 1 18 5 19 1 19 5",
       "25 28 29 4 10 27 30 11 21 12 1 22 3 2 0 18 15 26 16 19 20 9 8 13 5 17 24 14 23 7 6"},
      {{3, 8, 21, 4, 0U, true, false},
       "5 6 7 7 4 4 5 6 3 3 4 3 5 6 7",
       "0 0 0 4 0 8 1 3 2 4 2 8 3 2 3 6 3 10 5 2 6 4 6 8 7 3 8 4 8 8 9 4 9 8 11 2 11 6 12 2 12 6 13 1 14 2 14 6 14 10",
       "2 3 4 11 0 9 5 14 15 13 7 6 1 10 12 8 22 17 20 18 23 21 19 16"},
      {{1, 4, 9, 3, 99U, false, true},
       "3 2 1 3 1 2",
       "0 0 0 3 0 6 2 0 2 3 2 6 3 2 3 5 4 0 4 3 4 6 5 0",
       "0 9 7 6 3 1 10 5 4 2 8"},
      {{0, 12, 40, 2, 5U, true, true},
       "7 5 2 9 11 4 8 1 0 10 6 3 9 8 2 10 6 4 3 0 11 5 1 7",
       "0 0 0 2 0 4 0 6 0 8 1 0 1 2 1 4 1 6 1 8 3 0 3 2 3 4 3 6 3 8 3 10 4 1 4 3 4 5 4 7 4 9 4 11 5 1 6 1 6 3 7 1 7 3 7 5 9 0 9 2 9 4 10 1 11 0 11 2 11 4 11 6 12 0 12 2 12 4 12 6 12 8 12 10 13 1 13 3 15 0 15 2 15 4 16 1 17 0 18 0 18 2 18 4 18 6 20 0 20 2 20 4 20 6 20 8 20 10 21 0 21 2 21 4 21 6 21 8 22 1 22 3 22 5 23 0 23 2 23 4 23 6 23 8",
       "31 13 34 8 11 19 15 26 23 28 21 12 3 17 6 27 2 29 20 24 4 25 0 5 14 16 7 33 1 30 32 10 9 18 22 65 45 63 39 59 70 58 57 67 66 54 55 52 47 35 43 46 53 48 37 40 61 50 41 44 68 51 42 56 60 36 64 69 49 62 38"},
  };
  const auto lengths = twelve_lengths();
  for (const Case& one : cases) {
    const MegatronIndex index = index_of(one.terms, lengths);
    CHECK(numbers(index.documents) == one.documents);
    CHECK(numbers(index.samples) == one.samples);
    CHECK(numbers(index.shuffle) == one.shuffle);
    CHECK(index.documents.type() == IndexArray::Type::int32);
    CHECK(index.samples.type() == IndexArray::Type::int32);
    CHECK(index.shuffle.type() == IndexArray::Type::uint32);
  }
}

TEST_CASE("a split without a token, or without a sample, makes no index") {
  CHECK_FALSE(mh::indexed::index_sizes({.first = 0, .last = 3, .samples = 5, .seq = 8}, 0));
  CHECK_FALSE(mh::indexed::index_sizes({.first = 0, .last = 1, .seq = 8}, 8)
  );                                                                     // no label for the last
  CHECK(mh::indexed::index_sizes({.first = 0, .last = 1, .seq = 8}, 9)); // one sample
  // A sample may be longer than the split: it goes round.
  CHECK(mh::indexed::index_sizes({.first = 0, .last = 1, .samples = 9, .seq = 8}, 5)->epochs == 15);
}

TEST_CASE("sums and orders of numpy and PyTorch") {
  // numpy.sum: in order up to 7 numbers, then in eight lanes
  std::vector<double> tenths(9, 0.1);
  CHECK(mh::indexed::numpy_sum(tenths) == 0.9);
  CHECK(std::accumulate(tenths.begin(), tenths.end(), 0.0) < 0.9);
  // numpy.random.RandomState(7)
  mh::indexed::RandomState random(7);
  for (const double expected : {0.07630828937395717, 0.7799187922401146, 0.4384092314408935}) {
    CHECK(random.uniform() == expected);
  }
  for (const auto& [end, expected] : {std::pair(2, 1), {3, 2}, {10, 8}, {1000, 349}}) {
    CHECK(1 + random.below(static_cast<uint64_t>(end - 1)) == static_cast<uint64_t>(expected));
  }
  for (const int64_t expected : {2, 2, 1, 3, 1, 4, 10, 2}) {
    CHECK(random.geometric(0.2) == expected);
  }
  const std::vector<double> shares{6.0 / 11, 3.0 / 11, 2.0 / 11};
  for (const size_t expected : {0, 1, 1, 1, 0, 2, 0, 1}) {
    CHECK(random.choice(shares) == expected);
  }
  // torch.randperm(10, generator=torch.Generator().manual_seed(3))
  CHECK((mh::indexed::torch_randperm(10, 3) == std::vector<uint32_t>{6, 0, 3, 7, 8, 5, 1, 9, 2, 4})
  );
}

TEST_CASE("index files are made once, by one of many, and mapped by all") {
  const Folder folder;
  auto fields = megatron({folder.write("c", counting(60))});
  auto args = arguments({0.8, 0.2, 0});
  args.wanted = {90, 10, 0};
  const std::string in_memory = all_tokens(IndexedCorpus(fields, args), Split::train);
  fields.index_files = folder.path() / "index";
  std::array<std::string, 4> found;
  std::vector<std::jthread> threads;
  for (std::string& tokens : found) {
    threads.emplace_back([&] { tokens = all_tokens(IndexedCorpus(fields, args), Split::train); });
  }
  threads.clear();
  CHECK(std::ranges::count(found, in_memory) == 4);
  size_t files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(*fields.index_files)) {
    files += entry.path().extension() == ".npy" || entry.path().extension() == ".txt" ? 1 : 0;
    CHECK(entry.path().extension() != ".part");
  }
  CHECK(files == 8); // two splits
}

TEST_CASE("index files that do not fit are refused") {
  const Folder folder;
  const std::string path = folder.write("c", counting(60));
  auto fields = megatron({path});
  fields.index_files = folder.path() / "index";
  auto args = arguments();
  args.wanted = {80, 0, 0};
  const auto open = [&] { return failure([&] { (void)IndexedCorpus(fields, args); }); };
  CHECK(open() == "no error");
  folder.write("c", counting(61)); // the corpus has changed
  CHECK(contains(open(), "description.txt describes documents [0,60], and"));
  Documents longer = counting(60); // as many documents, one of them longer
  longer.back().push_back(1);
  folder.write("c", longer);
  CHECK(contains(open(), "description.txt describes tokens"));
  folder.write("c", counting(60));
  std::filesystem::path documents;
  for (const auto& entry : std::filesystem::directory_iterator(*fields.index_files)) {
    if (entry.path().string().ends_with("document_index.npy")) {
      documents = entry.path();
    }
  }
  const std::string good = mh::read_file(documents, 1 << 20);
  mh::replace_file(documents, good.substr(0, good.size() - 4));
  CHECK(contains(open(), "its header counts 480 bytes of numbers, but 476 follow"));
  mh::replace_file(documents, good.substr(0, good.size() - 4) + std::string("\xff\0\0\0", 4));
  CHECK(contains(open(), "number 119 is document 255, but the split has documents 0 to 59"));
  mh::replace_file(documents, "\x93NUMPY");
  CHECK(contains(open(), "format version 0, expected 1 or 2"));
}

TEST_CASE("index files of a corpus whose documents have other lengths since are refused") {
  const Folder folder;
  Documents documents = counting(60);
  documents[3] = {1, 2, 3, 4, 5};
  documents[4] = {6};
  const std::string path = folder.write("c", documents);
  auto fields = megatron({path});
  fields.index_files = folder.path() / "index";
  auto args = arguments();
  args.wanted = {80, 0, 0};
  const auto read = [&] {
    return failure([&] {
      const IndexedCorpus corpus(fields, args);
      for (int64_t i = 0; i < 80; ++i) {
        (void)corpus.sample(mh::Split::train, i);
      }
    });
  };
  CHECK(read() == "no error");
  std::swap(documents[3], documents[4]); // as many documents and tokens
  folder.write("c", documents);
  CHECK(contains(read(), "description.txt describes lengths"));
  for (const auto& entry : std::filesystem::directory_iterator(*fields.index_files)) {
    if (const auto& file = entry.path(); file.extension() == ".txt") { // as Megatron writes it
      std::string text = mh::read_file(file, 1 << 20);
      const size_t at = text.find(",\n    \"lengths\"");
      REQUIRE(at != std::string::npos);
      mh::replace_file(file, text.erase(at, text.find('\n', at + 2) - at));
    }
  }
  CHECK(contains(read(), "the index files lead to "));
}

TEST_CASE("pads and ends of documents in Megatron's order") {
  const Folder folder;
  // Two samples of 3 tokens; the second has one token only: 8 and nothing behind it.
  auto fields = megatron({folder.write("c", {{5, 0, 6, 7, 8}})});
  fields.reset_positions = fields.reset_attention = fields.mask_eod_loss = true;
  fields.eod = 0;
  fields.drop_last_partial = false;
  auto args = arguments({0, 1, 0}, 3);
  args.split = {0, 1, 0};
  const IndexedCorpus corpus(fields, args);
  REQUIRE(corpus.size(Split::valid) == 2);
  std::array<mh::Sample, 2> samples{corpus.sample(Split::valid, 0), corpus.sample(Split::valid, 1)};
  if (array(samples[0], "tokens")[0] != 5) {
    std::swap(samples[0], samples[1]);
  }
  CHECK((array(samples[0], "tokens") == Ids{5, 0, 6}));
  CHECK((array(samples[0], "labels") == Ids{0, 6, 7}));
  CHECK((loss_mask(samples[0]) == std::vector<float>{1, 0, 1}));
  CHECK((array(samples[0], "positions") == Ids{0, 1, 0}));
  CHECK((array(samples[0], "segments") == Ids{0, 0, 1}));
  CHECK((array(samples[1], "tokens") == Ids{7, 8, 0}));
  CHECK((array(samples[1], "labels") == Ids{8, 0, 0}));
  CHECK((loss_mask(samples[1]) == std::vector<float>{1, 0, 0}));
}

TEST_CASE("sources with names: a split of their own, validation one by one") {
  const Folder folder;
  auto fields = config({});
  const auto source = [&](const char* name, int32_t id, const char* split) {
    mh::indexed::SourceConfig source;
    source.path = folder.write(
        std::string(name) + "_text_document", Documents(20, {id, id, id, id, id, id, id, id, id})
    );
    source.split = split;
    return source;
  };
  fields.sources = {
      source("web", 1, "train"), source("code", 2, "valid"), source("math", 3, "valid")};
  fields.validation_by_source = true;
  const IndexedCorpus corpus(fields, arguments());
  CHECK(corpus.size(Split::train) == 22);
  CHECK(corpus.size(Split::valid) == 44);
  CHECK(corpus.size(Split::test) == 0);
  const auto parts = corpus.parts(Split::valid);
  REQUIRE(parts.size() == 2);
  CHECK(parts[0].name == "code");
  CHECK(parts[1].name == "math");
  CHECK(parts[1].first == 22);
  for (int64_t i = 0; i < 44; ++i) {
    CHECK(array(corpus.sample(Split::valid, i), "tokens")[0] == (i < 22 ? 2 : 3));
    CHECK(array(corpus.sample(Split::train, i), "tokens")[0] == 1);
  }
  CHECK(contains(corpus.summary(), "(train 180, valid 360)"));
}

TEST_CASE("a mixture by epochs and by tokens, and one that changes") {
  const Folder folder;
  auto fields = config({});
  const auto add = [&](const char* name, int32_t id, int documents) -> mh::indexed::SourceConfig& {
    mh::indexed::SourceConfig source;
    source.path = folder.write(
        name, Documents(static_cast<size_t>(documents), {id, id, id, id, id, id, id, id})
    );
    source.name = name;
    fields.sources.push_back(source);
    return fields.sources.back();
  };
  fields.sources.reserve(2);
  auto& web = add("web", 1, 100);
  auto& code = add("code", 2, 50);
  const auto of_web = [&](const IndexedCorpus& corpus, int64_t first, int64_t last) {
    int64_t count = 0;
    for (int64_t i = first; i < last; ++i) {
      count += array(corpus.sample(Split::train, i), "tokens")[0] == 1 ? 1 : 0;
    }
    return count;
  };
  web.epochs = 1;
  code.epochs = 2; // as many tokens of each
  auto args = arguments();
  args.wanted = {100, 0, 0};
  CHECK(of_web(IndexedCorpus(fields, args), 0, 100) == 50);
  CHECK(
      (IndexedCorpus(fields, args).details() ==
       std::vector<std::string>{
           "web: 400 tokens expected, 0.5 epochs", "code: 400 tokens expected, 1 epochs"})
  );
  web.epochs = code.epochs = std::nullopt;
  web.tokens = "3M";
  code.tokens = "1M tokens";
  CHECK(of_web(IndexedCorpus(fields, args), 0, 100) == 75);

  fields.changes = {
      {"320 tokens", {{"web", 0}, {"code", 2}}}, {"0.64K tokens", {{"web", 1}, {"code", 1}}}};
  const IndexedCorpus changing(fields, args); // samples of 8 tokens: from sample 40 and 80 on
  CHECK(of_web(changing, 0, 40) == 30);
  CHECK(of_web(changing, 40, 80) == 0);
  CHECK(of_web(changing, 80, 100) == 10);
  CHECK(
      (changing.details() ==
       std::vector<std::string>{
           "web: 320 tokens expected, 0.4 epochs", "code: 480 tokens expected, 1.2 epochs"})
  );

  // Each corpus goes on where it was: its first samples are those of an epoch, each once.
  std::set<std::string> seen;
  const Folder other;
  fields.sources[0].path = other.write("web", counting(100));
  const IndexedCorpus counted(fields, args);
  size_t samples = 0;
  for (int64_t i = 0; i < 100; ++i) {
    const auto sample = counted.sample(Split::train, i);
    if (array(sample, "tokens")[0] != 2 || array(sample, "tokens")[1] != 2) {
      std::string text;
      for (const int64_t id : array(sample, "tokens")) {
        text += std::to_string(id) + " ";
      }
      seen.insert(text);
      ++samples;
    }
  }
  CHECK(samples == 40);
  CHECK(seen.size() == samples);
}

TEST_CASE("what a recipe may get wrong about sources and orders") {
  const auto refused = [](const mh::Table& options) {
    return failure(
        [&] { (void)mh::fields_of<IndexedCorpus>().read(options, "data"); }, mh::exit_code::recipe
    );
  };
  const auto sources = [](const std::vector<mh::Table>& tables) {
    mh::Value::Array array;
    for (const mh::Table& table : tables) {
      array.emplace_back(table);
    }
    return mh::Value(array);
  };
  const mh::Table web{{"path", "web"}}, code{{"path", "code"}};
  CHECK(contains(
      refused({{"sources", sources({web})}, {"paths", mh::Value::Array{"a"}}}),
      "there are data.paths, too"
  ));
  CHECK(contains(
      refused(
          {{"sources",
            sources({{{"path", "web"}, {"weight", 1.0}}, {{"path", "b"}, {"epochs", 1.0}}})}}
      ),
      "all sources say their share in the same way"
  ));
  CHECK(contains(
      refused({{"sources", sources({{{"path", "web"}, {"tokens", "much"}}})}}),
      "tokens \"much\" of web is no amount"
  ));
  CHECK(contains(
      refused(
          {{"sources", sources({{{"path", "a/web"}}, {{"path", "b/web"}}})},
           {"validation_by_source", true}}
      ),
      "two sources have the name `web`"
  ));
  CHECK(contains(
      refused(
          {{"sources", sources({{{"path", "a"}, {"name", "x"}}, {{"path", "b"}, {"name", "x"}}})}}
      ),
      "two sources have the name `x`"
  ));
  const auto change = [&](const char* at, mh::Table weights) {
    return refused(
        {{"sources", sources({web, code})},
         {"changes", mh::Value::Array{mh::Table{{"at", at}, {"weights", std::move(weights)}}}}}
    );
  };
  CHECK(contains(change("soon", {{"web", 1.0}, {"code", 1.0}}), "at \"soon\" is no point of a run")
  );
  CHECK(contains(change("5B tokens", {{"web", 1.0}, {"cod", 1.0}}), "there is no source `cod`"));
  CHECK(contains(change("5B tokens", {{"web", 1.0}}), "1 weights for 2 sources"));
  CHECK(contains(change("5B tokens", {{"web", 0.0}, {"code", 0.0}}), "all weights are 0"));
  const mh::Value::Array one{"a"};
  CHECK(contains(refused({{"paths", one}, {"index_files", "x"}}), "index files are Megatron's"));
  CHECK(
      contains(refused({{"paths", one}, {"dataloader", "cyclic"}}), "are of the order \"megatron\"")
  );
  CHECK(contains(
      refused({{"paths", one}, {"order", "megatron"}, {"shuffle", false}}),
      "Megatron's order is shuffled"
  ));
  CHECK(contains(
      refused(
          {{"paths", one},
           {"weights", mh::Value::Array{1.0}},
           {"order", "megatron"},
           {"full_validation", true}}
      ),
      "a whole validation split has no weights"
  ));
  const Folder folder;
  auto args = arguments();
  args.seed = uint64_t{1} << 32;
  CHECK(contains(
      failure(
          [&] { (void)IndexedCorpus(megatron({folder.write("c", counting(60))}), args); },
          mh::exit_code::recipe
      ),
      "train.seed 4294967296 is more than Megatron's order can have"
  ));
  args.seed = 1;
  CHECK(contains(
      failure([&] {
        (void)IndexedCorpus(megatron({folder.write("e", {{}, {1, 2}})}), args);
      }),
      "the train split holds 2 documents of 2 with 2 tokens, but a sample needs 9"
  ));
}

} // namespace megatron_tests
