#include "plugins/data/retrieval/functions.hpp"
#include "plugins/data/retrieval/ict.hpp"
#include "plugins/data/retrieval/pairs.hpp"
#include "plugins/data/tokenizers/tokenizers.hpp"
#include "temporary_corpora.hpp"

#include <megahost/error.hpp>

#include <doctest/doctest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <set>

namespace retrieval_tests {

namespace fs = std::filesystem;
using mh::Split;
using mh::retrieval::commented_functions;
using mh::retrieval::IctCorpus;
using mh::retrieval::PairsCorpus;
using Floats = std::vector<float>;

namespace {

constexpr int64_t kPad = 256, kCls = 258, kSep = 259;

/// A folder that goes when the test ends.
class Files {
public:
  Files() {
    std::string name = (fs::temp_directory_path() / "megahost-retrieval-XXXXXX").string();
    REQUIRE(mkdtemp(name.data()) != nullptr);
    path_ = name;
  }

  ~Files() { fs::remove_all(path_); }

  Files(const Files&) = delete;
  Files& operator=(const Files&) = delete;

  std::string write(const std::string& name, const std::string& text) const {
    std::ofstream(path_ / name, std::ios::binary) << text;
    return (path_ / name).string();
  }

  [[nodiscard]] std::vector<std::string> paths() const { return {path_.string()}; }

private:
  fs::path path_;
};

const mh::ByteTokenizer& bytes() {
  static const mh::ByteTokenizer tokenizer({.special = true, .extra_ids = 0}, {});
  return tokenizer;
}

mh::Corpus::Args
args_of(int64_t query, int64_t block, std::array<double, 3> split = {0.8, 0.2, 0}) {
  return {
      .tokenizer = &bytes(),
      .seq_length = block,
      .vocab = bytes().vocab(),
      .split = split,
      .sequences = {{"query", query}}};
}

const Ids& ids(const mh::Sample& sample, const char* name) {
  return array(sample, name);
}

/// The text of an array, "^" for [CLS] and "|" for [SEP]; its padding is checked.
std::string text(const mh::Sample& sample, const std::string& sequence) {
  const Ids& tokens = ids(sample, (sequence + "tokens").c_str());
  const Ids& segments = ids(sample, (sequence + "segments").c_str());
  REQUIRE(tokens.size() == segments.size());
  std::string found;
  for (size_t i = 0; i < tokens.size(); ++i) {
    CHECK((tokens[i] == kPad) == (segments[i] == 1));
    if (segments[i] == 0) {
      found += tokens[i] == kCls ? '^' : tokens[i] == kSep ? '|' : static_cast<char>(tokens[i]);
    }
  }
  return found;
}

} // namespace

TEST_CASE("functions and their comments") {
  const auto found = commented_functions(R"(
/// Adds two numbers,
///   one to the other.
int add(int a, int b) {
  return a + b;  // the sum
}

// too few
int f();

/*
 * Multiplies them all.
 */
template <class T>
T product(const std::vector<T>& all);

// This is no function but a constant.
constexpr int kMost = 3;

# Says hello to someone.
def hello(name):
    print(name)

// A comment that nothing follows, but a blank line

void other(int);
)");
  REQUIRE(found.size() == 3);
  CHECK(found[0].comment == "Adds two numbers, one to the other.");
  CHECK(found[0].code == "int add(int a, int b) { return a + b; // the sum }");
  CHECK(found[1].comment == "Multiplies them all.");
  CHECK(found[1].code == "template <class T> T product(const std::vector<T>& all);");
  CHECK(found[2].comment == "Says hello to someone.");
  CHECK(found[2].code == "def hello(name): print(name)");
  CHECK(commented_functions("").empty());
  CHECK(commented_functions("// only a comment of words").empty());
  CHECK(commented_functions("/* a comment that never ends (").empty());
  CHECK(commented_functions("// closes what it did not open\n)))\nf(").empty());
}

TEST_CASE("ict takes a sentence out of its block") {
  const Files files;
  for (int i = 0; i < 20; ++i) {
    std::string all;
    for (int line = 0; line < 12; ++line) {
      all += "file " + std::to_string(i) + " line " + std::to_string(line) + ".\n";
    }
    (void)files.write("text" + std::to_string(i) + ".txt", all);
  }
  IctCorpus::Config config;
  config.paths = files.paths();
  config.query_in_block = 0.25;
  const auto args = args_of(24, 80);
  const IctCorpus corpus(config, args);
  const auto count = corpus.size(Split::train);
  CHECK(count > 40);
  CHECK(corpus.size(Split::valid) > 5);
  CHECK(corpus.size(Split::test) == 0);
  double kept = 0;
  std::set<int64_t> numbers;
  for (int64_t i = 0; i < count; ++i) {
    const auto sample = corpus.sample(Split::train, i);
    REQUIRE((sample == corpus.sample(Split::train, i)));
    const std::string query = text(sample, "query_"), block = text(sample, "");
    CHECK(query.starts_with("^file "));
    CHECK(query.ends_with(".\n|"));
    CHECK(block.starts_with("^file "));
    CHECK(block.ends_with("|"));
    kept += block.find(query.substr(1, query.size() - 2)) == std::string::npos ? 0 : 1;
    numbers.insert(ids(sample, "labels").front());
    CHECK(std::get<Floats>(sample.at("pair_mask")) == Floats{1});
  }
  CHECK(static_cast<int64_t>(numbers.size()) == count); // each block once
  CHECK(kept / static_cast<double>(count) == doctest::Approx(0.25).epsilon(0.5));
  CHECK((corpus.sample(Split::train, 0) != corpus.sample(Split::train, count)));
  auto other = args;
  other.seed = 7;
  const IctCorpus again(config, other);
  CHECK((again.sample(Split::train, 0) != corpus.sample(Split::train, 0)));
  CHECK((again.sample(Split::valid, 3) == corpus.sample(Split::valid, 3)));
}

TEST_CASE("blocks of one sentence, and queries that stay") {
  const Files files;
  (void)files.write("a.txt", "a single line that is long enough to fill a block of its own\n");
  IctCorpus::Config config;
  config.paths = files.paths();
  config.query_in_block = 0;
  const auto args = args_of(16, 24, {1, 0, 0});
  CHECK_THROWS_AS(IctCorpus(config, args), mh::Error);
  config.one_sentence = true;
  const IctCorpus corpus(config, args);
  CHECK(corpus.size(Split::train) == 3);
  for (int64_t i = 0; i < 3; ++i) {
    const auto sample = corpus.sample(Split::train, i);
    const std::string query = text(sample, "query_");
    CHECK(query.size() <= 16);
    CHECK(text(sample, "").starts_with(query.substr(0, query.size() - 1)));
  }
}

TEST_CASE("ict by comments: no comment is in two splits") {
  const Files files;
  for (int file = 0; file < 4; ++file) {
    std::string all;
    for (int i = 0; i < 30; ++i) {
      all += "// Returns the number " + std::to_string(i) + " of all.\nint f" + std::to_string(i) +
             "();\n\n";
    }
    (void)files.write("code" + std::to_string(file) + ".cpp", all);
  }
  IctCorpus::Config config;
  config.paths = files.paths();
  config.query = "comment";
  config.query_in_block = 0;
  const IctCorpus corpus(config, args_of(64, 64));
  CHECK(corpus.size(Split::train) == 24);
  CHECK(corpus.size(Split::valid) == 6);
  std::set<std::string> train;
  for (int64_t i = 0; i < 24; ++i) {
    const auto sample = corpus.sample(Split::train, i);
    train.insert(text(sample, "query_"));
    CHECK(text(sample, "").starts_with("^int f"));
  }
  CHECK(train.size() == 24);
  for (int64_t i = 0; i < 6; ++i) {
    CHECK(!train.contains(text(corpus.sample(Split::valid, i), "query_")));
  }
}

TEST_CASE("pairs of a file with hard negatives") {
  const Files files;
  const std::string file = files.write(
      "pairs.jsonl",
      R"({"query": "a?", "positive": {"title": "t", "text": "a."}, "negatives": ["n1", "n2", "n3"]}

{"question": "b?", "positive_ctxs": [{"title": "", "text": "b."}, {"text": "unused"}], "hard_negative_ctxs": [{"title": "u", "text": "m"}]}
{"query": "c?", "positive": "c."}
)"
  );
  auto args = args_of(8, 8, {1, 0, 0});
  args.sequences.emplace("negative1", 8);
  args.sequences.emplace("negative2", 8);
  PairsCorpus::Config config;
  config.paths = {file};
  const PairsCorpus corpus(config, args);
  REQUIRE(corpus.size(Split::train) == 3);
  std::set<std::string> drawn;
  for (int64_t i = 0; i < 60; ++i) {
    const auto sample = corpus.sample(Split::train, i);
    const std::string query = text(sample, "query_");
    const auto& mask = std::get<Floats>(sample.at("negative_mask"));
    const Ids& labels = ids(sample, "labels");
    REQUIRE(labels.size() == 3);
    if (query == "^a?|") {
      CHECK(text(sample, "") == "^t|a.|");
      CHECK(mask == Floats{1, 1});
      CHECK(text(sample, "negative1_") != text(sample, "negative2_"));
      drawn.insert(text(sample, "negative1_"));
    } else if (query == "^b?|") {
      CHECK(text(sample, "") == "^b.|");
      CHECK(text(sample, "negative1_") == "^u|m|");
      CHECK(mask == Floats{1, 0});
    } else {
      CHECK(query == "^c?|");
      CHECK(mask == Floats{0, 0});
      CHECK(text(sample, "negative1_") == "^|");
    }
  }
  CHECK(drawn.size() == 3);
}

TEST_CASE("what is no pair is refused with its line") {
  const Files files;
  const auto refused = [&](const std::string& line) {
    PairsCorpus::Config config;
    config.paths = {files.write(
        "bad.jsonl",
        R"({"query": "a?", "positive": "a."})"
        "\n" +
            line + "\n"
    )};
    try {
      const PairsCorpus corpus(config, args_of(8, 8, {1, 0, 0}));
    } catch (const mh::Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  CHECK(refused("{").find("bad.jsonl:2 is no JSON object") != std::string::npos);
  CHECK(refused("[]").find("is no JSON object") != std::string::npos);
  CHECK(refused(R"({"positive": "a"})").find("has no \"query\"") != std::string::npos);
  CHECK(refused(R"({"query": 3, "positive": "a"})").find("has no \"query\"") != std::string::npos);
  CHECK(refused(R"({"query": "q"})").find("has no \"positive\"") != std::string::npos);
  CHECK(
      refused(R"({"query": "q", "positive": []})").find("has no \"positive\"") != std::string::npos
  );
  CHECK(
      refused(R"({"query": "q", "positive": 1})").find("has a context that is neither") !=
      std::string::npos
  );
  CHECK(
      refused(R"({"query": "q", "positive": {"title": "t"}})")
          .find("has a context that is neither") != std::string::npos
  );
  CHECK(
      refused(R"({"query": "q", "positive": "p", "negatives": "n"})").find("that are no list") !=
      std::string::npos
  );
  CHECK(refused(R"({"query": "q", "positive": "p", "negatives": []})").empty());
}

TEST_CASE("a retriever's samples need a query and special tokens") {
  const Files files;
  (void)files.write("a.txt", "one line\nanother line\n");
  IctCorpus::Config config;
  config.paths = files.paths();
  auto args = args_of(16, 64, {1, 0, 0});
  const mh::ByteTokenizer plain({}, {});
  auto other = args;
  other.tokenizer = &plain;
  CHECK_THROWS_WITH_AS(
      IctCorpus(config, other),
      "the corpus ict needs the special token [CLS], which the tokenizer does not have",
      mh::Error
  );
  auto few = args;
  few.vocab = 258;
  CHECK_THROWS_AS(IctCorpus(config, few), mh::Error);
  auto hard = args;
  hard.sequences.emplace("negative1", 64);
  CHECK_THROWS_AS(IctCorpus(config, hard), mh::Error);
  args.sequences.clear();
  CHECK_THROWS_AS(IctCorpus(config, args), mh::Error);
}

} // namespace retrieval_tests
