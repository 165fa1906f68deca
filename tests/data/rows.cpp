#include "plugins/data/indexed/bins.hpp"
#include "plugins/data/indexed/fill_in.hpp"
#include "plugins/data/indexed/indexed.hpp"
#include "temporary_corpora.hpp"

#include <megahost/error.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <set>

namespace rows_tests {

using mh::Split;
using mh::indexed::Bins;
using mh::indexed::fill_in;
using mh::indexed::FillIn;

TEST_CASE("every document once an epoch, whole where it fits, and no sample beyond its length") {
  const Folder folder;
  const Documents documents = counting(200); // 0 to 12 tokens
  const mh::IndexedDataset dataset(folder.write("c", documents));
  for (const bool first_fit : {false, true}) {
    const Bins bins(dataset, 0, 200, 8, 5, first_fit);
    std::map<uint64_t, std::set<uint64_t>> seen; // document: first tokens
    for (uint64_t i = 0; i < bins.size(); ++i) {
      uint64_t pairs = 0;
      for (const auto& piece : bins.sample(i)) {
        CHECK(piece.count >= 2);
        CHECK(piece.count == std::min<uint64_t>(documents[piece.document].size() - piece.first, 9));
        CHECK(seen[piece.document].insert(piece.first).second);
        pairs += piece.count - 1;
      }
      CHECK(pairs > 0);
      CHECK(pairs <= 8);
      CHECK((first_fit || bins.sample(i).size() == 1));
    }
    uint64_t pieces = 0, tokens = 0;
    for (size_t i = 0; i < documents.size(); ++i) {
      const size_t length = documents[i].size();
      CHECK(seen[i].size() == (length < 2 ? 0 : (length + 6) / 8));
      pieces += seen[i].size();
      tokens += length < 2 ? 0 : length - 1;
    }
    CHECK((first_fit ? bins.size() < tokens / 8 * 115 / 100 : bins.size() == pieces));
    CHECK(bins.sample(3).front().document != bins.sample(bins.size() + 3).front().document);
  }
}

TEST_CASE("documents of a sample do not see one another, and what is empty counts for nothing") {
  const Folder folder;
  auto fields = config({folder.write("c", {{1, 2, 3}, {4, 5}, {6, 7, 8, 9}})});
  fields.packing = "first_fit";
  fields.shuffle = false;
  const IndexedCorpus corpus(fields, arguments({1, 0, 0}, 4));
  REQUIRE(corpus.size(Split::train) == 2);
  const auto sample = corpus.sample(Split::train, 0);
  CHECK((array(sample, "tokens") == Ids{1, 2, 4, 0}));
  CHECK((array(sample, "labels") == Ids{2, 3, 5, 0}));
  CHECK((loss_mask(sample) == std::vector<float>{1, 1, 1, 0}));
  CHECK((array(sample, "positions") == Ids{0, 1, 0, 0}));
  CHECK((array(sample, "segments") == Ids{0, 0, 1, 2}));
  CHECK(IndexedCorpus::arrays(fields, arguments()).size() == 5);
  fields.packing = "pad";
  const IndexedCorpus padded(fields, arguments({1, 0, 0}, 4));
  REQUIRE(padded.size(Split::train) == 3);
  CHECK((array(padded.sample(Split::train, 1), "tokens") == Ids{4, 0, 0, 0}));
  CHECK(padded.sample(Split::train, 1).size() == 3);
}

TEST_CASE("gaps are filled with the same ids, moved, and three new ones") {
  const FillIn how{.rate = 1, .spm_rate = 0.5, .prefix = 100, .middle = 101, .suffix = 102};
  Ids whole(20);
  std::iota(whole.begin(), whole.end(), 0);
  size_t first = 0, last = 0, same = 0;
  for (uint64_t key = 0; key < 1000; ++key) {
    Ids ids = whole, mask(20, 1);
    fill_in(how, key, ids, mask);
    Ids again = whole, again_mask(20, 1);
    fill_in(how, key, again, again_mask);
    REQUIRE(ids == again);
    REQUIRE(ids.size() == 20);
    if (ids == whole) {
      ++same;
      continue;
    }
    REQUIRE(ids[0] == 100);
    const auto part = [&](int64_t from, int64_t to) {
      const auto begin = std::ranges::find(ids, from) + 1;
      return Ids(begin, to < 0 ? ids.end() : std::find(begin, ids.end(), to));
    };
    Ids restored;
    if (ids[1] == 102) { // suffix, then prefix and middle
      ++first;
      restored = part(101, -1);
      const Ids suffix = part(102, 101);
      restored.insert(restored.end(), suffix.begin(), suffix.end());
    } else {
      ++last;
      restored = part(100, 102);
      const Ids middle = part(101, -1), suffix = part(102, 101);
      restored.insert(restored.end(), middle.begin(), middle.end());
      restored.insert(restored.end(), suffix.begin(), suffix.end());
    }
    CHECK((restored == Ids(whole.begin(), whole.begin() + 17)));
  }
  CHECK(first > 300);
  CHECK(last > 300);
  CHECK(same > 100); // the suffix has less than three ids
  CHECK(same < 400);
  Ids ids = whole, mask(20, 1);
  fill_in({.rate = 0}, 7, ids, mask);
  CHECK(ids == whole);
}

TEST_CASE("filling gaps in a corpus depends on seed and sample only") {
  const Folder folder;
  auto fields = config({folder.write("c", Documents(50, {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}))});
  fields.fim_rate = 0.5;
  fields.fim_prefix = 20;
  fields.fim_middle = 21;
  fields.fim_suffix = 22;
  auto args = arguments({1, 0, 0}, 24);
  const IndexedCorpus a(fields, args), b(fields, args);
  args.seed = 5;
  const IndexedCorpus other(fields, args);
  int64_t changed = 0, differ = 0;
  for (int64_t i = a.size(Split::train); i-- > 0;) {
    const auto sample = a.sample(Split::train, i);
    CHECK((b.sample(Split::train, i) == sample));
    differ += other.sample(Split::train, i) != sample ? 1 : 0;
    changed += std::ranges::count(array(sample, "tokens"), 21);
  }
  CHECK(changed > 5);
  CHECK(changed < 45);
  CHECK(differ > 0);

  // The end of a document stays where it is, and ids of gaps are the model's.
  fields.fim_rate = 1;
  fields.eod = 12;
  const IndexedCorpus ended(fields, args);
  int64_t ends = 0;
  for (int64_t i = ended.size(Split::train); i-- > 0;) {
    ends += std::ranges::count(array(ended.sample(Split::train, i), "tokens"), 12);
  }
  CHECK(ends >= 48);
  fields.fim_suffix = 24;
  args.vocab = 24;
  CHECK(contains(
      failure([&] { (void)IndexedCorpus(fields, args); }, mh::exit_code::recipe),
      "data.fim_suffix is 24, but the model has ids 0 to 23"
  ));
}

TEST_CASE("pieces of a long conversation in which nothing is trained are left out") {
  const Folder folder;
  auto fields =
      config({folder.write("chat_messages_document", {{1, 2, 3, 4, 5, 6, 7, 8}, {9, 9}})});
  folder.write("chat_messages_loss", {{0, 0, 0, 0, 1, 1, 0, 0}, {0, 1}});
  fields.supervised = true;
  fields.packing = "pad";
  fields.shuffle = false;
  const IndexedCorpus corpus(fields, arguments({1, 0, 0}, 2));
  REQUIRE(corpus.size(Split::train) == 3); // there are five pieces
  CHECK((array(corpus.sample(Split::train, 0), "tokens") == Ids{3, 4}));
  CHECK((loss_mask(corpus.sample(Split::train, 0)) == std::vector<float>{0, 1}));
  CHECK((array(corpus.sample(Split::train, 1), "tokens") == Ids{5, 6}));
  CHECK((loss_mask(corpus.sample(Split::train, 1)) == std::vector<float>{1, 0}));
  fields.paths = {folder.write("plain", {{1, 2, 3}})};
  CHECK(
      contains(failure([&] { (void)IndexedCorpus(fields, arguments()); }), "data.supervised needs")
  );
}

TEST_CASE("epochs and tokens of sources whose samples are not equally full") {
  const Folder folder;
  auto fields = config({});
  fields.packing = "pad";
  const auto add = [&](const char* name, size_t length) {
    mh::indexed::SourceConfig source;
    source.path = folder.write(name, Documents(100, std::vector<int32_t>(length, 1)));
    source.name = name;
    source.epochs = 1;
    fields.sources.push_back(source);
  };
  add("short", 3);
  add("long", 9);
  auto args = arguments();
  args.wanted = {200, 0, 0};
  const IndexedCorpus corpus(fields, args);
  int64_t short_ones = 0;
  for (int64_t i = 0; i < 200; ++i) {
    const auto sample = corpus.sample(Split::train, i);
    short_ones += std::ranges::count(loss_mask(sample), 1.0F) == 2 ? 1 : 0;
  }
  CHECK(short_ones == 100);
  CHECK(
      (corpus.details() ==
       std::vector<std::string>{
           "short: 300 tokens expected, 1 epochs", "long: 900 tokens expected, 1 epochs"})
  );
}

TEST_CASE("supervised rows count where the other corpus says so") {
  const Folder folder;
  auto fields = config({folder.write("chat_messages_document", {{1, 2, 3, 4, 5}, {6, 7, 8}})});
  folder.write("chat_messages_loss", {{0, 0, 1, 1, 0}, {0, 1, 1}});
  fields.supervised = true;
  fields.packing = "first_fit";
  fields.shuffle = false;
  const IndexedCorpus corpus(fields, arguments({1, 0, 0}, 6));
  const auto sample = corpus.sample(Split::train, 0);
  CHECK((array(sample, "labels") == Ids{2, 3, 4, 5, 7, 8}));
  CHECK((loss_mask(sample) == std::vector<float>{0, 1, 1, 0, 1, 1}));
  fields.packing = "stream";
  const IndexedCorpus stream(fields, arguments({1, 0, 0}, 7));
  CHECK((loss_mask(stream.sample(Split::train, 0)) == std::vector<float>{0, 1, 1, 0, 0, 1, 1}));
  folder.write("chat_messages_loss", {{0, 0, 1, 1}, {0, 1, 1}});
  CHECK(contains(
      failure([&] { (void)IndexedCorpus(fields, arguments()); }),
      "chat_messages_loss has other documents than"
  ));
}

TEST_CASE("what a recipe may get wrong about samples") {
  const auto refused = [](const mh::Table& options) {
    return failure(
        [&] { (void)mh::fields_of<IndexedCorpus>().read(options, "data"); }, mh::exit_code::recipe
    );
  };
  const mh::Value::Array one{"a"};
  CHECK(contains(
      refused({{"paths", one}, {"order", "megatron"}, {"packing", "pad"}}),
      "is a stream of documents"
  ));
  CHECK(contains(
      refused({{"paths", one}, {"fim_rate", 0.5}, {"fim_prefix", 1}}), "needs the ids fim_prefix"
  ));
  CHECK(contains(refused({{"paths", one}, {"fim_rate", 1.5}}), "fim_rate"));
  CHECK(contains(
      refused(
          {{"paths", one}, {"fim_rate", 1}, {"fim_prefix", 1}, {"fim_middle", 2}, {"fim_suffix", 1}}
      ),
      "three different ids"
  ));
}

} // namespace rows_tests
