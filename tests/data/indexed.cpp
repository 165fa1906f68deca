#include "plugins/data/indexed/indexed.hpp"

#include "plugins/data/indexed/packing.hpp"
#include "plugins/data/tokenizers/tokenizers.hpp"
#include "temporary_corpora.hpp"

#include <megahost/error.hpp>
#include <megahost/registry.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <thread>
#include <utility>

namespace indexed_tests {

using mh::Split;
using mh::indexed::Packing;

TEST_CASE("an epoch is one stream of all documents: samples share a token, pieces follow each other"
) {
  const Folder folder;
  const Documents documents = counting(200);
  const mh::IndexedDataset dataset(folder.write("c", documents));
  const Packing packing(dataset, 0, 200, 8, 5);
  REQUIRE(packing.tokens() == dataset.tokens());
  REQUIRE(packing.size() == (packing.tokens() - 1) / 8);

  // Put the samples of an epoch in the order of the stream, by following the shared tokens.
  std::map<int64_t, Ids> by_first;
  for (uint64_t i = 0; i < packing.size(); ++i) {
    Ids ids;
    for (const auto& piece : packing.sample(packing.size() * 3 + i)) {
      CHECK(piece.count > 0);
      for (uint64_t k = 0; k < piece.count; ++k) {
        ids.push_back(documents[piece.document][piece.first + k]);
      }
    }
    REQUIRE(ids.size() == 9);
    CHECK(by_first.emplace(ids.front(), ids).second);
  }
  std::set<int64_t> lasts;
  for (const auto& [first, ids] : by_first) {
    lasts.insert(ids.back());
  }
  Ids stream;
  const auto start =
      std::ranges::find_if(by_first, [&](const auto& s) { return !lasts.contains(s.first); });
  REQUIRE(start != by_first.end());
  for (auto at = start; at != by_first.end(); at = by_first.find(stream.back())) {
    stream.insert(stream.end(), at->second.begin() + (stream.empty() ? 0 : 1), at->second.end());
    if (stream.size() > packing.tokens()) {
      break;
    }
  }
  CHECK(stream.size() == packing.size() * 8 + 1);
  CHECK(std::set<int64_t>(stream.begin(), stream.end()).size() == stream.size());

  // The stream is whole documents, but for the last one.
  size_t at = 0, whole = 0;
  std::vector<size_t> order;
  while (at < stream.size()) {
    const auto document = std::ranges::find_if(documents, [&](const auto& ids) {
      return !ids.empty() && ids.front() == stream[at];
    });
    REQUIRE(document != documents.end());
    const size_t length = std::min(document->size(), stream.size() - at);
    CHECK(std::equal(
        document->begin(),
        document->begin() + static_cast<ptrdiff_t>(length),
        stream.begin() + static_cast<ptrdiff_t>(at)
    ));
    order.push_back(static_cast<size_t>(document - documents.begin()));
    whole += length == document->size() ? 1 : 0;
    at += length;
  }
  CHECK(whole > 150);
  CHECK_FALSE(std::ranges::is_sorted(order));
}

TEST_CASE("a sample depends on its number and the key only, in any order and on any thread") {
  const Folder folder;
  const mh::IndexedDataset dataset(folder.write("c", counting(300)));
  const auto text = [](const Packing& packing, uint64_t index) {
    std::string text;
    for (const auto& piece : packing.sample(index)) {
      text += std::to_string(piece.document) + ":" + std::to_string(piece.first) + "+" +
              std::to_string(piece.count) + " ";
    }
    return text;
  };
  const Packing a(dataset, 10, 290, 16, 1), b(dataset, 10, 290, 16, 1),
      other(dataset, 10, 290, 16, 2);
  const uint64_t size = a.size();
  std::vector<std::string> forward;
  for (uint64_t i = 0; i < 4 * size; ++i) {
    forward.push_back(text(a, i));
  }
  for (uint64_t i = 4 * size; i-- > 0;) {
    REQUIRE(text(b, i) == forward[i]);
  }
  CHECK(text(other, 0) != forward[0]);
  CHECK(forward[0] != forward[size]);
  std::vector<std::jthread> threads;
  std::array<int, 4> wrong{};
  for (size_t t = 0; t < wrong.size(); ++t) {
    threads.emplace_back([&, t] {
      for (uint64_t i = t; i < 4 * size; i += 3) {
        wrong[t] += text(b, i) != forward[i] ? 1 : 0;
      }
    });
  }
  threads.clear();
  CHECK(wrong == std::array<int, 4>{});
}

TEST_CASE("files that are read give the tokens that mapped ones do, on any thread") {
  const Folder folder;
  const std::string prefix = folder.write("c", counting(300));
  const mh::IndexedDataset mapped(prefix), read(prefix, mh::IndexedDataset::Access::read);
  REQUIRE(read.sequences() == mapped.sequences());
  REQUIRE(read.documents() == mapped.documents());
  const auto tokens = [](const mh::IndexedDataset& dataset, uint64_t sequence, uint64_t first) {
    std::vector<int64_t> ids(dataset.length(sequence) - first);
    dataset.read(sequence, first, ids);
    return ids;
  };
  std::array<int, 4> wrong{};
  std::vector<std::jthread> threads;
  for (size_t t = 0; t < wrong.size(); ++t) {
    threads.emplace_back([&, t] {
      for (uint64_t i = 0; i < mapped.sequences(); ++i) {
        const uint64_t first = std::min<uint64_t>(t, mapped.length(i));
        wrong[t] += tokens(read, i, first) != tokens(mapped, i, first) ? 1 : 0;
      }
    });
  }
  threads.clear();
  CHECK(wrong == std::array<int, 4>{});
  std::filesystem::resize_file(prefix + ".bin", 4);
  const uint64_t begin = read.begin(200) * read.token_bytes();
  const uint64_t size = read.length(200) * read.token_bytes();
  CHECK_THROWS_WITH_AS(
      (void)tokens(read, 200, 0),
      doctest::Contains((prefix + ".bin: ends at byte " + std::to_string(begin) + ", expected " +
                         std::to_string(size) + " more")
                            .c_str()),
      mh::Error
  );
}

TEST_CASE("sums of many documents, added up by several threads") {
  const Folder folder;
  const mh::IndexedDataset dataset(folder.write("c", Documents(600'000, {1, 2, 3})));
  const Packing packing(dataset, 0, 600'000, 100, 7);
  for (const uint64_t index : {uint64_t{0}, packing.size() / 2, packing.size() - 1}) {
    uint64_t tokens = 0;
    for (const auto& piece : packing.sample(index)) {
      tokens += piece.count;
    }
    CHECK(tokens == 101);
  }
}

TEST_CASE("splits are ranges of documents, cut as Megatron cuts them") {
  const Folder folder;
  Documents documents;
  for (int32_t i = 0; i < 25; ++i) {
    documents.emplace_back(10, i);
  }
  // 25 * 0.9 = 22.5 and 25 * 0.98 = 24.5: halves to even.
  const IndexedCorpus corpus(config({folder.write("c", documents)}), arguments({0.9, 0.08, 0.02}));
  const auto seen = [&](Split split) {
    std::set<int64_t> ids;
    for (int64_t i = 0; i < 6 * corpus.size(split); ++i) {
      const auto sample = corpus.sample(split, i);
      ids.insert(array(sample, "tokens").begin(), array(sample, "tokens").end());
    }
    return std::pair(*ids.begin(), *ids.rbegin());
  };
  CHECK(seen(Split::train) == std::pair<int64_t, int64_t>(0, 21));
  CHECK(seen(Split::valid) == std::pair<int64_t, int64_t>(22, 23));
  CHECK(seen(Split::test) == std::pair<int64_t, int64_t>(24, 24));
  CHECK(corpus.summary() == "indexed: 25 documents, 250 tokens (train 220, valid 20, test 10)");
}

TEST_CASE("tokens, labels and loss mask") {
  const Folder folder;
  const IndexedCorpus corpus(config({folder.write("c", counting(100))}), arguments());
  for (int64_t i = 0; i < corpus.size(Split::train); ++i) {
    const auto sample = corpus.sample(Split::train, i);
    CHECK(sample.size() == 3);
    const Ids &tokens = array(sample, "tokens"), &labels = array(sample, "labels");
    REQUIRE(tokens.size() == 8);
    REQUIRE(labels.size() == 8);
    CHECK(std::equal(tokens.begin() + 1, tokens.end(), labels.begin()));
    CHECK((loss_mask(sample) == std::vector<float>(8, 1.0F)));
  }
}

TEST_CASE("the seed orders train, and only train") {
  const Folder folder;
  const std::string path = folder.write("c", counting(400));
  auto args = arguments({0.8, 0.2, 0});
  const IndexedCorpus a(config({path}), args);
  args.seed = 77;
  const IndexedCorpus b(config({path}), args);
  CHECK((a.sample(Split::train, 0) != b.sample(Split::train, 0)));
  for (int64_t i = 0; i < 2 * a.size(Split::valid); ++i) {
    CHECK((a.sample(Split::valid, i) == b.sample(Split::valid, i)));
  }
}

TEST_CASE("resets and masks at the ends of documents") {
  const Folder folder;
  auto fields = config({folder.write("c", {{5, 6, 0, 7, 0}, {8, 0}, {9, 9, 9}, {1, 2, 3, 4}})});
  fields.reset_positions = fields.reset_attention = fields.mask_eod_loss = true;
  fields.eod = 0;
  const IndexedCorpus corpus(fields, arguments({1, 0, 0}, 13));
  REQUIRE(corpus.size(Split::train) == 1);
  const auto sample = corpus.sample(Split::train, 0);
  Ids tokens = array(sample, "tokens");
  tokens.push_back(array(sample, "labels").back());
  Ids positions, segments;
  std::vector<float> mask;
  // By hand: every document starts anew, and what follows a 0 too.
  const std::set<int64_t> starts{5, 8, 1};
  for (size_t i = 0; i < 13; ++i) {
    const bool nine = tokens[i] == 9 && (i == 0 || tokens[i - 1] != 9);
    const bool anew = i == 0 || starts.contains(tokens[i]) || nine || tokens[i - 1] == 0;
    positions.push_back(anew ? 0 : positions.back() + 1);
    segments.push_back(i == 0 ? 0 : segments.back() + (anew ? 1 : 0));
    mask.push_back(tokens[i] == 0 ? 0.0F : 1.0F);
  }
  CHECK((array(sample, "positions") == positions));
  CHECK((array(sample, "segments") == segments));
  CHECK((loss_mask(sample) == mask));
  CHECK(segments.back() == 4);
  CHECK(std::ranges::count(mask, 0.0F) >= 2);
}

TEST_CASE("a blend of corpora; without weights each gives what it has") {
  const Folder folder;
  Documents small, large;
  for (int i = 0; i < 30; ++i) {
    small.emplace_back(9, 1);
    large.emplace_back(18, 2);
    large.emplace_back(9, 2);
  }
  auto fields = config({folder.write("small", small), folder.write("large", large)});
  const auto ones = [](const IndexedCorpus& corpus, int64_t count) {
    int64_t ones = 0;
    for (int64_t i = 0; i < count; ++i) {
      ones += array(corpus.sample(Split::train, i), "tokens").front() == 1 ? 1 : 0;
    }
    return ones;
  };
  const IndexedCorpus by_size(fields, arguments());
  CHECK(by_size.size(Split::train) == 33 + 101);
  CHECK(ones(by_size, 134) == 33);
  CHECK(by_size.summary() == "indexed: 2 corpora, 90 documents, 1,080 tokens (train 1,080)");
  fields.weights = {3, 1};
  CHECK(ones(IndexedCorpus(fields, arguments()), 400) == 300);
}

TEST_CASE("whole splits: each token once, whatever weights and orders of training are") {
  const Folder folder;
  const std::vector<std::string> files{
      folder.write("a", counting(100)), folder.write("b", {{7, 7}, {8}, {9, 9, 9}})};
  auto args = arguments({0, 1, 0});
  args.whole_splits = true;
  args.wanted = {0, 400, 0};
  for (const char* order : {"megahost", "megatron"}) {
    for (const bool by_source : {false, true}) {
      auto fields = config(files);
      fields.order = order;
      fields.weights = {1, 30};
      fields.validation_by_source = by_source;
      fields.eod = 0;
      const IndexedCorpus corpus(fields, args);
      std::multiset<int64_t> read;
      for (int64_t i = 0; i < corpus.size(Split::valid); ++i) {
        const auto sample = corpus.sample(Split::valid, i);
        for (size_t at = 0; at < 8; ++at) {
          if (loss_mask(sample)[at] > 0) {
            read.insert(array(sample, "labels")[at]);
          }
        }
      }
      std::multiset<int64_t> expected{7, 8, 9, 9, 9};
      bool first = true;
      for (const auto& document : counting(100)) {
        for (const int32_t id : document) {
          if (!std::exchange(first, false)) {
            expected.insert(id);
          }
        }
      }
      CHECK((read == expected));
    }
  }
}

TEST_CASE("an id outside the vocabulary is named with its document") {
  const Folder folder;
  Documents documents(20, std::vector<int32_t>(9, 1));
  documents[13][4] = 300;
  const std::string path = folder.write("c", documents);
  auto args = arguments();
  args.vocab = 300;
  CHECK(contains( // before any sample is asked for
      failure([&] { const IndexedCorpus corpus(config({path}), args); }),
      path + ".bin: document 13 holds the id 300 at token 4, but the model has ids 0 to 299"
  ));
  args.vocab = 301;
  CHECK(IndexedCorpus(config({path}), args).size(Split::train) == 22);
}

TEST_CASE("of a large corpus some ids are looked at first, and the others with their samples") {
  const Folder folder;
  Documents documents(130, std::vector<int32_t>(1 << 14, 1));
  documents[1][7] = 300; // every second document is looked at
  const std::string path = folder.write("c", documents);
  auto args = arguments({1, 0, 0}, 1 << 12);
  args.vocab = 300;
  const IndexedCorpus corpus(config({path}), args);
  const std::string message = failure([&] {
    for (int64_t i = 0; i < corpus.size(Split::train); ++i) {
      (void)corpus.sample(Split::train, i);
    }
  });
  CHECK(contains(
      message, path + ".bin: document 1 holds the id 300 at token 7, but the model has ids 0 to 299"
  ));
}

TEST_CASE("training needs no validation split") {
  const Folder folder;
  const std::string path = folder.write("c", Documents(3, std::vector<int32_t>(9, 1)));
  const IndexedCorpus corpus(config({path}), arguments({0.99, 0.01, 0}));
  CHECK(corpus.size(Split::train) == 3);
  CHECK(corpus.size(Split::valid) == 0);
  CHECK(contains(
      failure([&] { (void)corpus.sample(Split::valid, 0); }),
      path + ": the valid split holds 0 documents of 3 with 0 tokens, but a sample needs 9"
  ));
}

TEST_CASE("what a recipe may get wrong") {
  const Folder folder;
  const std::string path = folder.write("c", Documents(23, std::vector<int32_t>(9, 1)));
  CHECK(contains(
      failure([&] { IndexedCorpus(config({path + "x"}), arguments()); }),
      "there is no " + path + "x.idx"
  ));
  CHECK(contains(
      failure([&] {
        (void)IndexedCorpus(config({path}), arguments({0.9, 0.08, 0.02})).sample(Split::test, 0);
      }),
      path + ": the test split holds 0 documents of 23 with 0 tokens, but a sample needs 9"
  ));
  CHECK(contains(
      failure([&] {
        IndexedCorpus(config({path}), arguments({1, 0, 0}, 207));
      }),
      "the train split holds 23 documents of 23 with 207 tokens, but a sample needs 208"
  ));
  const IndexedCorpus corpus(config({path}), arguments());
  CHECK(corpus.size(Split::valid) == 0);
  CHECK(contains(
      failure([&] { (void)corpus.sample(Split::valid, 0); }),
      "the valid split of the corpus is empty"
  ));

  auto fields = config({path});
  fields.mask_eod_loss = true;
  const mh::ByteTokenizer bytes({}, {});
  auto args = arguments();
  args.tokenizer = &bytes;
  CHECK(contains(
      failure([&] { IndexedCorpus(fields, args); }, mh::exit_code::recipe),
      "data.mask_eod_loss needs an end of document"
  ));

  const auto refused = [](const mh::Table& options) {
    return failure(
        [&] { (void)mh::fields_of<IndexedCorpus>().read(options, "data"); }, mh::exit_code::recipe
    );
  };
  const mh::Value::Array two{"a", "b"};
  CHECK(contains(
      refused({{"paths", two}, {"weights", mh::Value::Array{1.0}}}),
      "there are 1 weights for 2 paths"
  ));
  CHECK(contains(
      refused({{"paths", two}, {"weights", mh::Value::Array{1.0, 0.0}}}), "a weight is not above 0"
  ));
  CHECK(contains(refused({{"paths", mh::Value::Array{}}}), "names no corpus"));
}

} // namespace indexed_tests
