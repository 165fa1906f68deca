#include "plugins/data/mock/mock.hpp"

#include <megahost/error.hpp>

#include <doctest/doctest.h>

#include <set>

namespace mock_tests {

namespace {

mh::Corpus::Args arguments(int64_t vocab = 50, uint64_t seed = 1) {
  mh::Corpus::Args args;
  args.seq_length = 64;
  args.vocab = vocab;
  args.split = {0.9, 0.1, 0};
  args.seed = seed;
  return args;
}

mh::MockCorpus mock(const std::string& pattern, const mh::Corpus::Args& args = arguments()) {
  mh::MockCorpus::Config config;
  config.pattern = pattern;
  config.samples = 20;
  return {config, args};
}

const std::vector<int64_t>& ids(const mh::Sample& sample, const char* name) {
  return std::get<std::vector<int64_t>>(sample.find(name)->second);
}

} // namespace

TEST_CASE("mock samples are shifted by one, inside the vocabulary and a pure function of the index"
) {
  for (const char* pattern : {"markov", "repeat", "count", "random"}) {
    CAPTURE(pattern);
    const auto corpus = mock(pattern);
    const auto again = mock(pattern);
    const auto other = mock(pattern, arguments(50, 2));
    CHECK(corpus.size(mh::Split::train) == 18);
    CHECK(corpus.size(mh::Split::valid) == 2);
    CHECK(corpus.size(mh::Split::test) == 0);
    (void)again.sample(mh::Split::valid, 1);
    for (int64_t index : {0, 17, 18, 1000000}) {
      const auto sample = corpus.sample(mh::Split::train, index);
      CHECK((sample == again.sample(mh::Split::train, index)));
      CHECK((sample != other.sample(mh::Split::train, index)));
      const auto& tokens = ids(sample, "tokens");
      const auto& labels = ids(sample, "labels");
      REQUIRE(tokens.size() == 64);
      CHECK(
          std::vector(tokens.begin() + 1, tokens.end()) ==
          std::vector(labels.begin(), labels.end() - 1)
      );
      CHECK((std::get<std::vector<float>>(sample.at("loss_mask")) == std::vector<float>(64, 1.0F)));
      for (int64_t id : tokens) {
        CHECK((id >= 0 && id < 50));
      }
    }
  }
}

TEST_CASE("an epoch holds each sample once, the next one in another order; splits share none") {
  const auto corpus = mock("random");
  std::vector<std::vector<int64_t>> first;
  std::vector<std::vector<int64_t>> second;
  for (int64_t i = 0; i < 18; ++i) {
    first.push_back(ids(corpus.sample(mh::Split::train, i), "tokens"));
    second.push_back(ids(corpus.sample(mh::Split::train, 18 + i), "tokens"));
  }
  CHECK(first != second);
  const std::set<std::vector<int64_t>> train(first.begin(), first.end());
  CHECK(train.size() == 18);
  CHECK(train == std::set<std::vector<int64_t>>(second.begin(), second.end()));
  CHECK(!train.contains(ids(corpus.sample(mh::Split::valid, 0), "tokens")));
  CHECK(!train.contains(ids(corpus.sample(mh::Split::valid, 1), "tokens")));
}

TEST_CASE("what there is to learn") {
  const auto repeat = mock("repeat").sample(mh::Split::train, 3);
  const auto count = mock("count").sample(mh::Split::train, 3);
  for (size_t i = 16; i < 64; ++i) {
    CHECK(ids(repeat, "tokens")[i] == ids(repeat, "tokens")[i - 16]);
  }
  for (size_t i = 0; i < 64; ++i) {
    const int64_t step = ids(count, "labels")[0] - ids(count, "tokens")[0];
    CHECK((ids(count, "labels")[i] - ids(count, "tokens")[i] - step) % 50 == 0);
  }
  const auto markov = mock("markov");
  std::map<int64_t, std::set<int64_t>> followers;
  for (int64_t i = 0; i < 20; ++i) {
    const auto sample = markov.sample(i < 18 ? mh::Split::train : mh::Split::valid, i % 18);
    for (size_t t = 0; t < 64; ++t) {
      followers[ids(sample, "tokens")[t]].insert(ids(sample, "labels")[t]);
    }
  }
  CHECK(followers.size() > 25);
  for (const auto& [token, after] : followers) {
    CHECK(after.size() <= 4);
  }
}

TEST_CASE("mock errors") {
  CHECK_THROWS_WITH_AS(
      mock("random", arguments(0)), "mock data has no vocabulary to draw from", mh::Error
  );
  CHECK_THROWS_AS((void)mock("random").sample(mh::Split::test, 0), mh::Error);
  CHECK_THROWS_AS(
      (void)mh::fields_of<mh::MockCorpus>().read(mh::Table{{"pattern", "sine"}}), mh::Error
  );
}

} // namespace mock_tests
