#include "plugins/data/gpt2/gpt2.hpp"

#include <megahost/error.hpp>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <random>
#include <thread>

namespace gpt2_tests {

using mh::gpt2::Gpt2Tokenizer;

namespace {

using Ids = std::vector<int32_t>;

/// The letter of the byte alphabet that stands for a byte.
std::string letter(unsigned char byte) {
  const bool itself = (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte != 0xAD);
  int code = byte;
  if (!itself) {
    code = 256;
    for (int other = 0; other < byte; ++other) {
      code += !((other >= '!' && other <= '~') || (other >= 0xA1 && other != 0xAD)) ? 1 : 0;
    }
  }
  if (code < 0x80) {
    return {static_cast<char>(code)};
  }
  return {static_cast<char>(0xC0 | code >> 6), static_cast<char>(0x80 | (code & 0x3F))};
}

/// A vocabulary: byte b has id b; then the merges' tokens; then the specials.
struct Files {
  std::vector<std::pair<std::string, std::string>> merges{
      {"h", "e"},
      {"l", "l"},
      {"he", "ll"},
      {"hell", "o"},
      {"Ġ", "w"},
      {"o", "r"},
      {"Ġw", "or"},
      {"a", "a"},
      {"aa", "aa"}};
  std::vector<std::string> special{"<|endoftext|>"};

  [[nodiscard]] nlohmann::json tokens() const {
    nlohmann::json tokens;
    for (int byte = 0; byte < 256; ++byte) {
      tokens[letter(static_cast<unsigned char>(byte))] = byte;
    }
    for (const auto& [left, right] : merges) {
      tokens[left + right] = tokens.size();
    }
    for (const std::string& token : special) {
      tokens[token] = tokens.size();
    }
    return tokens;
  }

  [[nodiscard]] std::string merges_text() const {
    std::string text = "#version: 0.2\n";
    for (const auto& [left, right] : merges) {
      text += left + " " + right + "\n";
    }
    return text;
  }
};

class Folder {
public:
  Folder() {
    std::string name = (std::filesystem::temp_directory_path() / "megahost-gpt2-XXXXXX").string();
    REQUIRE(mkdtemp(name.data()) != nullptr);
    path_ = name;
  }

  ~Folder() { std::filesystem::remove_all(path_); }

  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;

  [[nodiscard]] std::unique_ptr<Gpt2Tokenizer> tokenizer(
      const std::string& vocab, const std::string& merges, Gpt2Tokenizer::Config config = {}
  ) const {
    config.vocab = path_ / "vocab.json";
    config.merges = path_ / "merges.txt";
    std::ofstream(config.vocab, std::ios::binary) << vocab;
    std::ofstream(config.merges, std::ios::binary) << merges;
    return std::make_unique<Gpt2Tokenizer>(config, mh::Tokenizer::Args{});
  }

  [[nodiscard]] std::unique_ptr<Gpt2Tokenizer> tokenizer(const Files& files = {}) const {
    return tokenizer(files.tokens().dump(), files.merges_text());
  }

  /// The error for damaged files.
  [[nodiscard]] std::string
  why(const std::string& vocab, const std::string& merges, const Gpt2Tokenizer::Config& config = {}
  ) const {
    try {
      (void)tokenizer(vocab, merges, config);
    } catch (const mh::Error& error) {
      CHECK(error.exit_code() == mh::exit_code::data);
      CHECK(!error.hint().empty());
      return error.what();
    }
    return "";
  }

private:
  std::filesystem::path path_;
};

bool contains(const std::string& text, const std::string& part) {
  CAPTURE(text);
  return text.find(part) != std::string::npos;
}

} // namespace

TEST_CASE("merges by rank, by hand") {
  const Folder folder;
  const auto tokenizer = folder.tokenizer();
  CHECK(tokenizer->vocab() == 256 + 9 + 1);
  CHECK(tokenizer->encode("hello") == Ids{259});
  CHECK(tokenizer->encode("hell") == Ids{258});
  CHECK(tokenizer->encode("hel") == Ids{256, 'l'});
  CHECK(tokenizer->encode("hello world") == Ids{259, 262, 'l', 'd'});
  CHECK(tokenizer->encode("lll") == Ids{257, 'l'}); // the leftmost pair first
  CHECK(tokenizer->encode("aaaaaaa") == Ids{264, 263, 'a'});
  CHECK(tokenizer->encode(" ") == Ids{' '});
  CHECK(tokenizer->encode("").empty());
  CHECK(tokenizer->decode(Ids{259, 262, 'l', 'd'}) == "hello world");
}

TEST_CASE("special tokens stand for themselves") {
  const Folder folder;
  Files files;
  files.special = {"<|endoftext|>", "<|end|>", "<|end|><|endoftext|>"};
  Gpt2Tokenizer::Config config;
  config.special_tokens = {"<|end|>", "<|end|><|endoftext|>"};
  const auto tokenizer = folder.tokenizer(files.tokens().dump(), files.merges_text(), config);
  CHECK(tokenizer->end_of_document() == 265);
  CHECK(tokenizer->encode("<|endoftext|>") == Ids{265});
  CHECK(tokenizer->encode("hello<|endoftext|>hello<|end|>") == Ids{259, 265, 259, 266});
  CHECK(tokenizer->encode("<|end|><|endoftext|><|end|>") == Ids{267, 266}); // the longest
  CHECK(tokenizer->encode("<|endof").size() == 7);
  CHECK(tokenizer->decode(Ids{265, 259, 267}) == "<|endoftext|>hello<|end|><|endoftext|>");
}

TEST_CASE("letters that are newer than the machine's libraries") {
  const Folder folder;
  Files files;
  files.merges = {{"'", "s"}};
  files.special = {};
  const auto tokenizer = folder.tokenizer(files);
  const std::string kawi = "\xF0\x91\xBC\x84"; // U+11F04, a letter since Unicode 15
  Ids expected{0xF0, 0x91, 0xBC, 0x84, 256};
  CHECK(tokenizer->encode(kawi + "'s") == expected); // no ' between letters and s
}

TEST_CASE("without an end of document") {
  const Folder folder;
  Files files;
  files.special = {};
  const auto tokenizer = folder.tokenizer(files);
  CHECK_FALSE(tokenizer->end_of_document());
  CHECK(tokenizer->encode("<|endoftext|>").size() == 13);
  Gpt2Tokenizer::Config config;
  config.eod = "</s>";
  CHECK(contains(
      folder.why(files.tokens().dump(), files.merges_text(), config),
      "vocab.json lacks the special token </s>"
  ));
}

TEST_CASE("any bytes come back, on any thread") {
  const Folder folder;
  const auto tokenizer = folder.tokenizer();
  const auto round_trips = [&](unsigned seed) {
    std::mt19937 random(seed);
    const std::string letters = "helo wora \n'\u00e9<|endoftext|>";
    int wrong = 0;
    for (int i = 0; i < 400; ++i) {
      std::string text(random() % 200, '\0');
      for (char& c : text) {
        c = static_cast<char>(
            random() % 3 == 0 ? random()
                              : static_cast<unsigned char>(letters[random() % letters.size()])
        );
      }
      wrong += tokenizer->decode(tokenizer->encode(text)) != text ? 1 : 0;
    }
    return wrong;
  };
  CHECK(round_trips(1) == 0);
  std::array<int, 4> wrong{};
  {
    std::vector<std::jthread> threads;
    for (unsigned t = 0; t < wrong.size(); ++t) {
      threads.emplace_back([&, t] { wrong[t] = round_trips(t + 2); });
    }
  }
  CHECK(wrong == std::array<int, 4>{});
}

TEST_CASE("a word of a megabyte, and more words than are remembered") {
  const Folder folder;
  const auto tokenizer = folder.tokenizer();
  const Ids ids = tokenizer->encode(std::string(1 << 20, 'a'));
  CHECK(ids == Ids(1 << 18, 264));
  std::string text;
  for (int i = 0; i < 300'000; ++i) {
    text += std::to_string(i) + " hello";
  }
  CHECK(tokenizer->decode(tokenizer->encode(text)) == text);
}

TEST_CASE("ids without a token") {
  const Folder folder;
  nlohmann::json tokens = Files().tokens();
  tokens["<|endoftext|>"] = 300; // leaves gaps
  const auto tokenizer = folder.tokenizer(tokens.dump(), Files().merges_text());
  CHECK(tokenizer->vocab() == 301);
  for (const int32_t id : {-1, 301, 299}) {
    CAPTURE(id);
    CHECK_THROWS_WITH_AS(
        (void)tokenizer->decode(Ids{id}), doctest::Contains("has no token"), mh::Error
    );
  }
}

TEST_CASE("every rule of vocab.json") {
  const Folder folder;
  const std::string merges = Files().merges_text();
  const auto why = [&](const std::string& vocab) { return folder.why(vocab, merges); };
  CHECK(why(Files().tokens().dump()) == "");
  CHECK(contains(why(""), "vocab.json: no valid JSON: syntax error at byte 1"));
  CHECK(contains(why("[]"), "found an array, expected an object"));
  CHECK(contains(why("3"), "found 3, expected an object"));
  CHECK(contains(why("{}"), "there is no token for the byte 0"));
  CHECK(contains(why("{\"a\": {}}"), "the token \"a\" has the id an object"));
  CHECK(contains(
      why("{\"a\": -1}"),
      "the token \"a\" has the id -1, expected a whole number from 0 to 16777215"
  ));
  CHECK(contains(why("{\"a\": 16777216}"), "has the id 16777216"));
  CHECK(contains(why("{\"a\": 1e3}"), "has the id 1e3"));
  CHECK(contains(why("{\"a\": \"1\"}"), "has the id a string"));
  CHECK(contains(why("{\"a\": 1, \"a\": 2}"), "the token \"a\" is given twice"));
  CHECK(contains(why("{\"a\": 1, \"b\": 1}"), "the id 1 is given twice"));
  CHECK(contains(why("{\"a\": 1} x"), "syntax error"));
  CHECK(contains(why("{\"\xFF\": 1}"), "syntax error"));
  nlohmann::json tokens = Files().tokens();
  tokens["<|pad|>"] = 266;
  CHECK(contains(why(tokens.dump()), "merges.txt: no line makes the token \"<|pad|>\" (id 266)"));
  Gpt2Tokenizer::Config config;
  config.special_tokens = {"<|pad|>"};
  CHECK(folder.why(tokens.dump(), merges, config) == "");
  tokens = Files().tokens();
  tokens.erase("q");
  CHECK(contains(why(tokens.dump()), "there is no token for the byte 113"));
}

TEST_CASE("every rule of merges.txt") {
  const Folder folder;
  const std::string vocab = Files().tokens().dump();
  const auto why = [&](const std::string& merges) { return folder.why(vocab, merges); };
  const std::string merges = Files().merges_text();
  CHECK(why(merges.substr(merges.find('\n') + 1)) == ""); // the first line may be missing
  CHECK(contains(why(merges + "he\n"), "merges.txt: line 11, \"he\", is no pair of tokens"));
  CHECK(contains(why(merges + "h e l\n"), "is no pair of tokens"));
  CHECK(contains(why(merges + "h zz\n"), "needs the token \"hzz\", which the vocabulary lacks"));
  CHECK(contains(why(merges + "h e\n"), "line 11, \"h e\", is given twice"));
  CHECK(contains(why("h e\n"), "no line makes the token"));
  std::string dos;
  for (const char c : merges) {
    dos += c == '\n' ? std::string("\r\n") : std::string(1, c);
  }
  CHECK(why(dos) == "");
}

TEST_CASE("files that are missing") {
  Gpt2Tokenizer::Config config;
  config.vocab = "/nonexistent/vocab.json";
  try {
    const Gpt2Tokenizer tokenizer(config, {});
    FAIL("a vocabulary that is not there");
  } catch (const mh::Error& error) {
    CHECK(
        contains(error.what(), "tokenizer.vocab: cannot read /nonexistent/vocab.json: No such file")
    );
  }
  config.vocab = "/";
  CHECK_THROWS_AS(Gpt2Tokenizer(config, {}), mh::Error);
}

TEST_CASE("cut anywhere or with flipped bits, files are refused or work") {
  const std::string vocab = Files().tokens().dump(), merges = Files().merges_text();
  const auto read = [](const std::string& vocab, const std::string& merges) {
    try {
      (void)mh::gpt2::read_vocabulary(vocab, "vocab.json", merges, "merges.txt", {"<|endoftext|>"});
      return true;
    } catch (const mh::Error& error) {
      CHECK(error.exit_code() == mh::exit_code::data);
      return false;
    }
  };
  REQUIRE(read(vocab, merges));
  for (size_t size = 0; size < vocab.size(); ++size) {
    CAPTURE(size);
    CHECK_FALSE(read(vocab.substr(0, size), merges));
  }
  for (size_t size = 0; size + 1 < merges.size();
       ++size) { // without its last line break it is whole
    CAPTURE(size);
    CHECK_FALSE(read(vocab, merges.substr(0, size)));
  }
  for (size_t bit = 0; bit < merges.size() * 8; ++bit) {
    std::string flipped = merges;
    flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ (1 << bit % 8));
    (void)read(vocab, flipped);
  }
  std::mt19937 random(1);
  for (int i = 0; i < 2000; ++i) {
    std::string flipped = vocab;
    const size_t bit = random() % (vocab.size() * 8);
    flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ (1 << bit % 8));
    (void)read(flipped, merges);
  }
}

} // namespace gpt2_tests
