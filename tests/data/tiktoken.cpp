#include "plugins/data/tiktoken/tiktoken.hpp"

#include "plugins/data/tiktoken/ranks.hpp"
#include "tests/data/temporary_file.hpp"

#include <megahost/error.hpp>

#include <doctest/doctest.h>

#include <random>

namespace tiktoken_tests {

using mh::tiktoken::read_ranks;
using mh::tiktoken::TiktokenTokenizer;

namespace {

using Ids = std::vector<int32_t>;

std::string base64(std::string_view bytes) {
  constexpr std::string_view kLetters =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  uint32_t bits = 0;
  int count = 0;
  for (const char byte : bytes) {
    bits = bits << 8 | static_cast<unsigned char>(byte);
    for (count += 8; count >= 6; count -= 6) {
      text += kLetters[bits >> (count - 6) & 63];
    }
  }
  if (count > 0) {
    text += kLetters[bits << (6 - count) & 63];
  }
  return text + std::string((4 - text.size() % 4) % 4, '=');
}

/// Byte b has rank b; then these.
std::vector<std::string> tokens() {
  std::vector<std::string> all;
  for (int byte = 0; byte < 256; ++byte) {
    all.emplace_back(1, static_cast<char>(byte));
  }
  for (const char* token : {"he", "ll", "hell", "hello", " w", "ell"}) {
    all.emplace_back(token);
  }
  return all;
}

std::string lines() {
  std::string text;
  for (size_t rank = 0; rank < tokens().size(); ++rank) {
    text += base64(tokens()[rank]) + " " + std::to_string(rank) + "\n";
  }
  return text;
}

std::string tekken() {
  std::string vocab;
  for (size_t rank = 0; rank < tokens().size(); ++rank) {
    vocab += std::string(rank == 0 ? "" : ",") + R"({"rank":)" + std::to_string(rank) +
             R"(,"token_bytes":")" + base64(tokens()[rank]) + R"(","token_str":null})";
  }
  return R"({"config":{"pattern":"\\p{L}+|[^\\p{L}]+","num_vocab_tokens":300,"default_vocab_size":272,)"
         R"("default_num_special_tokens":10},"vocab":[)" +
         vocab + "]}";
}

class File : public TemporaryFile {
public:
  using TemporaryFile::TemporaryFile;

  [[nodiscard]] TiktokenTokenizer::Config config(const std::string& pattern) const {
    TiktokenTokenizer::Config config;
    config.path = path();
    config.pattern = pattern;
    return config;
  }
};

std::string why(const std::string& text) {
  try {
    (void)read_ranks(text, "ranks");
  } catch (const mh::Error& error) {
    CHECK(error.exit_code() == mh::exit_code::data);
    return error.what();
  }
  return "";
}

} // namespace

TEST_CASE("merges by rank, special tokens behind them") {
  const File file(lines());
  auto config = file.config("llama3");
  config.special_tokens = {"<|begin|>", "<|end|>"};
  config.bos = "<|begin|>";
  config.eos = "<|end|>";
  const TiktokenTokenizer tokenizer(config, {});
  CHECK(tokenizer.vocab() == 264);
  CHECK(tokenizer.encode("hello") == Ids{259});
  CHECK(tokenizer.encode("hell hel") == Ids{258, ' ', 256, 'l'}); // "he" ranks before "ell"
  CHECK(tokenizer.encode("xell") == Ids{'x', 261});               // by way of "ll"
  CHECK(tokenizer.encode("hello<|end|> w") == Ids{259, 263, 260});
  CHECK(tokenizer.decode(Ids{262, 259, 263}) == "<|begin|>hello<|end|>");
  CHECK(tokenizer.end_of_document() == 263);
  CHECK(tokenizer.special_ids().bos == 262);
  CHECK_FALSE(tokenizer.special_ids().pad);
  CHECK_THROWS_WITH_AS(
      (void)tokenizer.decode(Ids{264}), doctest::Contains("the id 264 has no token"), mh::Error
  );
}

TEST_CASE("tekken: special tokens come first, and texts do not make them") {
  const File file(tekken());
  const TiktokenTokenizer tokenizer(file.config(""), {});
  CHECK(tokenizer.vocab() == 272);
  CHECK(tokenizer.encode("hello, hello") == Ids{269, 10 + ',', 10 + ' ', 269});
  CHECK(tokenizer.encode("<s>") == Ids{10 + '<', 10 + 's', 10 + '>'});
  CHECK(tokenizer.special_ids().bos == 1);
  CHECK(tokenizer.end_of_document() == 2);
}

TEST_CASE("any bytes come back through ranks") {
  const File file(lines());
  std::mt19937 random(1);
  for (const char* pattern :
       {"gpt2", "cl100k", "o200k", "llama3", "qwen2", "qwen3_5", R"(\s+|\S+)"}) {
    const TiktokenTokenizer tokenizer(file.config(pattern), {});
    for (int i = 0; i < 300; ++i) {
      std::string text(random() % 200, '\0');
      for (char& c : text) {
        c = static_cast<char>(random() % 2 == 0 ? random() : "hello w'S1 \n"[random() % 12]);
      }
      CAPTURE(text);
      REQUIRE(tokenizer.decode(tokenizer.encode(text)) == text);
    }
  }
}

TEST_CASE("what a tokenizer by rank must be told") {
  const File file(lines());
  const auto refused = [](TiktokenTokenizer::Config config, const char* sentence) {
    CHECK_THROWS_WITH_AS(TiktokenTokenizer(config, {}), doctest::Contains(sentence), mh::Error);
  };
  refused(file.config(""), "tokenizer.pattern is missing");
  refused(file.config("llama-3"), "tokenizer.pattern: no pattern is named llama-3");
  refused(file.config("(a"), "tokenizer.pattern: the regular expression \"(a\" is wrong");
  auto config = file.config("llama3");
  config.special_tokens = {"<a>", "<a>"};
  refused(config, "<a> is given twice");
  config.special_tokens = {""};
  refused(config, "an empty token");
  config.special_tokens = {};
  config.eos = "<b>";
  refused(config, "tokenizer.eos: there is no special token <b>");
  config.path = "/no/such/file";
  refused(config, "tokenizer.path: cannot read /no/such/file: No such file");
}

TEST_CASE("every rule of rank files") {
  CHECK(why(lines()) == "");
  CHECK(why(tekken()) == "");
  const auto says = [](const std::string& text, const char* sentence) {
    CAPTURE(sentence);
    CHECK(why(text).find(sentence) != std::string::npos);
  };
  says("", "no token for the byte 0");
  says("AA==\n", "line 1 is no token in base64 and its rank");
  says("A*== 0\n", "line 1 is no token in base64");
  says("A 0\n", "line 1 is no token in base64");
  says(" 0\n", "line 1 has a token without bytes");
  says("AA== x\n", "line 1 has no rank");
  says("AA== -1\n", "line 1 has the rank -1");
  says("AA== 16777216\n", "has the rank 16777216");
  says("AA== 0\nAA== 1\n", "line 2 gives a token twice");
  says("AA== 0\nAQ== 0\n", "line 2 gives the rank 0 twice");
  says("AA== 1\n", "no token has the rank 0");
  says("{", "no valid JSON");
  says("{}", "`config` is missing");
  std::string text = tekken();
  says(text.replace(text.find("272"), 3, "999"), "`vocab` is no list");
  text = tekken();
  says(text.replace(text.find("\"AA==\""), 6, "\"!!\""), "vocab[0] has no bytes in base64");
  text = tekken();
  says(text.replace(text.find("\"rank\":1,"), 9, "\"rank\":0,"), "gives the rank 0 twice");
}

TEST_CASE("rank files cut anywhere or with flipped bits are refused or work") {
  std::mt19937 random(2);
  for (const std::string& whole : {lines(), tekken()}) {
    for (int i = 0; i < 1500; ++i) {
      std::string text = whole;
      const size_t bit = random() % (text.size() * 8);
      text[bit / 8] = static_cast<char>(text[bit / 8] ^ (1 << bit % 8));
      (void)why(text);
      (void)why(whole.substr(0, random() % whole.size()));
    }
  }
}

} // namespace tiktoken_tests
