#include "plugins/data/text/text.hpp"

#include "plugins/data/text/files.hpp"
#include "plugins/data/tokenizers/tokenizers.hpp"

#include <megahost/error.hpp>
#include <megahost/shuffle.hpp>

#include <doctest/doctest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <optional>
#include <set>

namespace text_tests {

namespace fs = std::filesystem;

namespace {

/// A folder that goes when the test ends.
class Folder {
public:
  Folder() {
    std::string name = (fs::temp_directory_path() / "megahost-text-XXXXXX").string();
    REQUIRE(mkdtemp(name.data()) != nullptr);
    path_ = name;
  }

  ~Folder() { fs::remove_all(path_); }

  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;

  std::string write(const std::string& name, const std::string& text) const {
    const fs::path path = path_ / name;
    fs::create_directories(path.parent_path());
    std::ofstream(path, std::ios::binary) << text;
    return path.string();
  }

  [[nodiscard]] std::string path(const std::string& name = "") const {
    return (path_ / name).string();
  }

private:
  fs::path path_;
};

/// Bytes, with an end of document and a larger vocabulary if a test wants them.
class TestTokenizer final : public mh::Tokenizer {
public:
  explicit TestTokenizer(std::optional<int32_t> eod = {}, int32_t shift = 0)
      : eod_(eod)
      , shift_(shift) {}

  [[nodiscard]] int64_t vocab() const override { return 256; }

  [[nodiscard]] std::vector<int32_t> encode(std::string_view text) const override {
    std::vector<int32_t> ids;
    for (char c : text) {
      ids.push_back(static_cast<unsigned char>(c) + shift_);
    }
    return ids;
  }

  [[nodiscard]] std::string decode(std::span<const int32_t>) const override { return ""; }

  [[nodiscard]] std::optional<int32_t> end_of_document() const override { return eod_; }

private:
  std::optional<int32_t> eod_;
  int32_t shift_;
};

const mh::ByteTokenizer kBytes({}, {});

mh::Corpus::Args arguments(std::array<double, 3> split = {1, 0, 0}, int64_t seq = 8) {
  mh::Corpus::Args args;
  args.tokenizer = &kBytes;
  args.seq_length = seq;
  args.vocab = 256;
  args.split = split;
  return args;
}

mh::text::TextCorpus
corpus(std::vector<std::string> paths, const mh::Corpus::Args& args = arguments()) {
  mh::text::TextCorpus::Config config;
  config.paths = std::move(paths);
  return {config, args};
}

std::string text(const mh::Sample& sample, const char* name) {
  std::string result;
  for (int64_t id : std::get<std::vector<int64_t>>(sample.find(name)->second)) {
    result += static_cast<char>(id);
  }
  return result;
}

std::vector<std::string> epoch(const mh::Corpus& corpus, mh::Split split, int64_t number) {
  std::vector<std::string> samples;
  const int64_t size = corpus.size(split);
  for (int64_t i = 0; i < size; ++i) {
    samples.push_back(text(corpus.sample(split, number * size + i), "tokens"));
  }
  return samples;
}

/// Runs it and returns the error, which must have exit code 5.
template <class Run>
std::string failure(Run run) {
  try {
    run();
  } catch (const mh::Error& error) {
    CHECK(error.exit_code() == mh::exit_code::data);
    CHECK(!error.hint().empty());
    return error.what();
  }
  return "no error";
}

std::string numbered(size_t bytes) {
  std::string text;
  for (int i = 0; text.size() < bytes; ++i) {
    text += std::to_string(i) + " ";
  }
  return text.substr(0, bytes);
}

} // namespace

TEST_CASE("samples cover the text once per epoch, each epoch in an order of its own") {
  const Folder folder;
  const std::string whole = numbered(8 * 20 + 1);
  const auto a = corpus({folder.write("a.txt", whole)});
  REQUIRE(a.size(mh::Split::train) == 20);
  const auto first = epoch(a, mh::Split::train, 0);
  CHECK(first != epoch(a, mh::Split::train, 1));
  CHECK(first == epoch(a, mh::Split::train, 0));
  std::multiset<std::string> expected;
  for (size_t i = 0; i < 20; ++i) {
    expected.insert(whole.substr(i * 8, 8));
  }
  for (int64_t number : {0, 1, 17}) {
    const auto samples = epoch(a, mh::Split::train, number);
    CHECK(std::multiset<std::string>(samples.begin(), samples.end()) == expected);
  }
  const auto sample = a.sample(mh::Split::train, 5);
  CHECK(text(sample, "tokens").substr(1) == text(sample, "labels").substr(0, 7));
  CHECK(std::get<std::vector<float>>(sample.at("loss_mask")) == std::vector<float>(8, 1.0F));

  auto args = arguments();
  args.seed = 5;
  CHECK(epoch(corpus({folder.path("a.txt")}, args), mh::Split::train, 0) != first);
}

TEST_CASE("a whole split is read to its last token, and its last sample filled up") {
  const Folder folder;
  auto args = arguments({0, 1, 0});
  args.whole_splits = true;
  for (const size_t bytes : {2U, 8U, 9U, 10U, 8U * 20, 8U * 20 + 1, 8U * 20 + 2}) {
    const std::string whole = numbered(bytes);
    const auto a = corpus({folder.write("a.txt", whole)}, args);
    std::multiset<std::string> read, expected;
    for (size_t i = 0; i + 1 < bytes; ++i) {
      expected.insert(whole.substr(i, 2));
    }
    for (int64_t i = 0; i < a.size(mh::Split::valid); ++i) {
      const auto sample = a.sample(mh::Split::valid, i);
      const auto& mask = std::get<std::vector<float>>(sample.at("loss_mask"));
      for (size_t at = 0; at < mask.size(); ++at) {
        if (mask[at] > 0) {
          read.insert({text(sample, "tokens")[at], text(sample, "labels")[at]});
        }
      }
    }
    CHECK(read == expected);
  }
}

TEST_CASE("the order of files does not depend on the file system") {
  const Folder folder;
  for (const char* name : {"b/z.txt", "b.txt", "B.txt", "a/1.txt", "a/10.txt", "a/2.txt"}) {
    folder.write(name, name);
  }
  const auto files = mh::text::find_text_files({folder.path()}, {".txt"});
  std::vector<std::string> names;
  for (const auto& file : files) {
    names.push_back(file.name);
    CHECK(file.bytes == file.name.size());
  }
  CHECK(
      names ==
      std::vector<std::string>{"B.txt", "a/1.txt", "a/10.txt", "a/2.txt", "b.txt", "b/z.txt"}
  );
}

TEST_CASE("which files are taken") {
  const Folder folder;
  const std::string odd = folder.write("odd.bin", "x");
  folder.write("in.txt", "x");
  folder.write(".git/in.txt", "x");
  folder.write(".hidden.txt", "x");
  fs::create_symlink(folder.path("in.txt"), folder.path("again.txt"));
  fs::create_directory_symlink(folder.path(), folder.path("loop"));
  fs::create_symlink(folder.path("gone"), folder.path("dangling.txt"));
  CHECK(mh::text::find_text_files({folder.path()}, {".txt"}).size() == 1);
  CHECK(mh::text::find_text_files({folder.path()}, {}).size() == 2);
  CHECK(mh::text::find_text_files({folder.path(), odd}, {".txt"}).size() == 2);
  CHECK(
      mh::text::find_text_files({odd, odd, folder.path("in.txt"), folder.path()}, {".txt"})
          .size() == 2
  );
}

TEST_CASE("for a few samples no more is read than they need") {
  const Folder folder;
  folder.write("a.txt", numbered(1'000'000));
  folder.write("b.txt", "\xff"); // an id that the model lacks
  auto args = arguments();
  args.vocab = 128;
  CHECK(failure([&] { corpus({folder.path()}, args); }).find("b.txt") != std::string::npos);
  args.samples = 24;
  const auto few = corpus({folder.path()}, args);
  CHECK(few.size(mh::Split::train) == 24);
  CHECK(few.summary().find("193 tokens") != std::string::npos);
  CHECK(numbered(193).find(text(few.sample(mh::Split::train, 5), "tokens")) != std::string::npos);
  args.split = {0.75, 0.25, 0};
  const auto both = corpus({folder.path()}, args);
  CHECK(both.size(mh::Split::valid) >= 24);
  args.samples = 1'000'000; // more than there is
  CHECK(failure([&] { corpus({folder.path()}, args); }).find("b.txt") != std::string::npos);
}

TEST_CASE("a file ends with the end of document, if the tokenizer has one and the recipe wants it"
) {
  const Folder folder;
  folder.write("a.txt", "aaaa");
  folder.write("b.txt", "");
  folder.write("c.txt", "cccc");
  const TestTokenizer tokenizer('|');
  auto args = arguments({1, 0, 0}, 9);
  args.tokenizer = &tokenizer;
  const auto ended = corpus({folder.path()}, args);
  REQUIRE(ended.size(mh::Split::train) == 1);
  CHECK(text(ended.sample(mh::Split::train, 0), "tokens") == "aaaa|cccc");
  CHECK(text(ended.sample(mh::Split::train, 0), "labels") == "aaa|cccc|");

  mh::text::TextCorpus::Config config;
  config.paths = {folder.path()};
  config.eod = false;
  args.seq_length = 7;
  const mh::text::TextCorpus plain(config, args);
  CHECK(text(plain.sample(mh::Split::train, 0), "tokens") == "aaaaccc");
}

TEST_CASE("splits are fair, share no document and do not depend on the seed") {
  const Folder folder;
  for (int i = 0; i < 400; ++i) {
    // Each file is one letter: a sample shows which file it comes from.
    folder.write(
        "f" + std::to_string(i) + ".txt", std::string(64, static_cast<char>('A' + i % 50)) + "\n"
    );
  }
  auto args = arguments({0.8, 0.15, 0.05});
  const auto a = corpus({folder.path()}, args);
  args.seed = 99;
  const auto b = corpus({folder.path()}, args);
  CHECK(double(a.size(mh::Split::train)) == doctest::Approx(0.8 * 400 * 65 / 8).epsilon(0.01));
  CHECK(double(a.size(mh::Split::valid)) == doctest::Approx(0.15 * 400 * 65 / 8).epsilon(0.01));
  CHECK(double(a.size(mh::Split::test)) == doctest::Approx(0.05 * 400 * 65 / 8).epsilon(0.03));
  CHECK(epoch(a, mh::Split::valid, 0) == epoch(b, mh::Split::valid, 0));
  CHECK(epoch(a, mh::Split::valid, 0) != epoch(a, mh::Split::valid, 1));
  CHECK(epoch(a, mh::Split::train, 0) != epoch(b, mh::Split::train, 0));
  CHECK(a.summary().starts_with("text: 400 files, 0.0 MB, 26,000 tokens (train 20,8"));
}

TEST_CASE("whole documents are shared out, each to one split") {
  std::vector<mh::text::Document> documents;
  for (uint64_t i = 0; i < 100; ++i) {
    documents.push_back({"d" + std::to_string(i), i * 10, i * 10 + 10});
  }
  std::vector<int32_t> ids(1000);
  for (size_t i = 0; i < ids.size(); ++i) {
    ids[i] = static_cast<int32_t>(i);
  }
  mh::text::TokenStore store(1000);
  store.append(ids);
  const auto slices = mh::text::split_documents(documents, {0.5, 0.25, 0.25}, 1);
  std::set<int64_t> all;
  for (const auto& slice : slices) {
    std::vector<int64_t> tokens(slice.size());
    slice.read(store, 0, tokens);
    CHECK(std::ranges::is_sorted(tokens));
    for (size_t i = 0; i < tokens.size(); i += 10) {
      CHECK(tokens[i] % 10 == 0);
      CHECK(tokens[i + 9] == tokens[i] + 9);
    }
    all.insert(tokens.begin(), tokens.end());
    for (size_t begin : {size_t{1}, size_t{9}, size_t{15}, tokens.size() - 7}) {
      std::vector<int64_t> part(7);
      slice.read(store, begin, part);
      CHECK(std::equal(part.begin(), part.end(), tokens.begin() + static_cast<ptrdiff_t>(begin)));
    }
  }
  CHECK(all.size() == 1000);
  CHECK(slices[0].size() == 500);
  CHECK(slices[1].size() == 250);
  CHECK(mh::text::split_documents(documents, {0, 1, 0}, 1)[1].size() == 1000);
  CHECK(mh::text::split_documents(documents, {0.999, 0.001, 0}, 25)[1].size() == 30);
  CHECK(mh::text::split_documents(documents, {0, 0.5, 0.5}, 1)[0].size() == 0);
}

TEST_CASE("long documents are cut into equal pieces") {
  const auto pieces = mh::text::cut({{"a", 0, 10}, {"b", 10, 11}, {"c", 11, 11 + 25}}, 10);
  REQUIRE(pieces.size() == 5);
  CHECK(pieces[0].name == "a");
  CHECK(pieces[2].name == "c#0");
  CHECK(pieces[2].end == 19);
  CHECK(pieces[3].end == 27);
  CHECK(pieces[4].end == 36);
}

TEST_CASE("one file is enough for three splits") {
  const Folder folder;
  const auto a = corpus({folder.write("book.txt", numbered(20000))}, arguments({0.9, 0.05, 0.05}));
  CHECK(double(a.size(mh::Split::valid)) == doctest::Approx(125).epsilon(0.1));
  const auto train = epoch(a, mh::Split::train, 0);
  const std::set<std::string> seen(train.begin(), train.end());
  for (const std::string& sample : epoch(a, mh::Split::valid, 0)) {
    CHECK(!seen.contains(sample));
  }
}

TEST_CASE("ids are stored in one, two or four bytes") {
  for (int32_t vocab : {256, 257, 65536, 65537, 2000000000}) {
    mh::text::TokenStore store(vocab);
    store.append(std::vector<int32_t>{0, 1});
    store.append(std::vector<int32_t>{vocab - 1, 2});
    std::vector<int64_t> ids(3);
    store.read(1, ids);
    CHECK(ids == std::vector<int64_t>{1, vocab - 1, 2});
    CHECK(store.size() == 4);
  }
}

TEST_CASE("bad input: a sentence, and exit code 5") {
  const Folder folder;
  folder.write("sub/empty.txt", "");
  const std::string small = folder.write("small.txt", "abcdefgh");
  CHECK(failure([&] { corpus({}); }) == "data.paths names no file");
  CHECK(failure([&] {
          corpus({folder.path("gone")});
        }) == "data.paths: cannot open " + folder.path("gone") + ": No such file or directory");
  CHECK(
      failure([&] { corpus({"@wikipedia"}); }) ==
      "data.paths: `@wikipedia` is unknown; the only path with a meaning of its own is "
      "`@torch-headers`"
  );
  fs::create_directory(folder.path("none"));
  CHECK(failure([&] {
          corpus({folder.path("none")});
        }) == "data.paths: no text file in " + folder.path("none"));
  CHECK(failure([&] {
          corpus({folder.path("sub")});
        }) == "the corpus is empty: 1 file with 0 tokens, and model.seq_length 8 needs 9");
  CHECK(
      failure([&] { corpus({small}); }) == "the corpus is shorter than one sequence: 1 file with 8 "
                                           "tokens, and model.seq_length 8 needs 9"
  );
  CHECK(failure([&] {
          corpus({"/proc/self/mem"});
        }) == "cannot read /proc/self/mem: Input/output error");
  const std::string middle = folder.write("middle.txt", numbered(40));
  CHECK(
      failure([&] {
        corpus({middle}, arguments({0.5, 0.25, 0.25}, 20));
      }) ==
      "data.split asks for a train split, but its share is less than one sequence: 1 file with 40 "
      "tokens were split as train 0, valid 40, test 0, and a sequence needs 21"
  );
  CHECK(failure([&] {
          (void)corpus({middle}).sample(mh::Split::valid, 0);
        }) == "the valid split of the corpus is empty");
  const auto valid_only = corpus({middle}, arguments({0, 0.5, 0.5}, 20));
  CHECK(valid_only.size(mh::Split::valid) > 0); // who asks for no test sample is fine with it
  CHECK(valid_only.size(mh::Split::test) == 0);
  CHECK(
      failure([&] { (void)valid_only.sample(mh::Split::test, 0); }) ==
      "data.split asks for a test split, but its share is less than one sequence: 1 file with 40 "
      "tokens were split as valid 40, test 0, and a sequence needs 21"
  );

  auto args = arguments();
  args.vocab = 100;
  CHECK(failure([&] {
          corpus({folder.write("high.txt", "abcdefghijklm")}, args);
        }) == folder.path("high.txt") + ": token 3 is id 100, but the model has ids 0 to 99");
  const TestTokenizer negative({}, -98);
  args.tokenizer = &negative;
  CHECK(failure([&] {
          corpus({folder.path("high.txt")}, args);
        }) == folder.path("high.txt") + ": token 0 is id -1, but the model has ids 0 to 99");
  const mh::NullTokenizer numbers({100}, {});
  args.tokenizer = &numbers;
  CHECK(failure([&] { corpus({folder.path("high.txt")}, args); }
  ).starts_with(folder.path("high.txt") + ": `abcdefghijklm` at byte 0 is no id"));
}

TEST_CASE("any bytes are text") {
  const Folder folder;
  std::string bytes;
  for (uint64_t i = 0; i < 5000; ++i) {
    bytes += static_cast<char>(mh::mix(i));
  }
  const auto a = corpus({folder.write("noise.txt", bytes)}, arguments({1, 0, 0}, 4999));
  CHECK(text(a.sample(mh::Split::train, 0), "tokens") == bytes.substr(0, 4999));
}

TEST_CASE("recipes must name files") {
  const auto fields = mh::fields_of<mh::text::TextCorpus>();
  CHECK_THROWS_AS((void)fields.read(mh::Table{}), mh::Error);
  CHECK(fields.read(mh::Table{{"paths", mh::Value::Array{"a"}}}).eod);
}

TEST_CASE("the headers of the LibTorch in use") {
  const fs::path headers = mh::text::torch_headers();
  CHECK(fs::is_regular_file(headers / "ATen/core/Tensor.h"));
  const auto a = corpus({"@torch-headers"}, arguments({0.95, 0.05, 0}, 256));
  CHECK(a.size(mh::Split::train) > 100000);
  CHECK(
      double(a.size(mh::Split::valid)) ==
      doctest::Approx(0.05 / 0.95 * double(a.size(mh::Split::train))).epsilon(0.05)
  );
  MESSAGE(a.summary());
}

} // namespace text_tests
