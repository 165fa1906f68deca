// GPT-2's words, by hand; what is no UTF-8 is cut off before.
#include "core/text/splitter.hpp"
#include "core/text/unigram.hpp"
#include "core/text/utf8.hpp"

#include <doctest/doctest.h>

#include <array>
#include <string>
#include <vector>

namespace {

std::vector<std::string> words(const std::string& text) {
  static const auto splitter = mh::text::gpt2_splitter();
  std::vector<std::string> words;
  mh::text::for_each_run(text, [&](std::string_view run, bool valid) {
    std::array<size_t, 3> ends{};
    for (size_t begin = 0; valid && begin < run.size();) {
      const size_t count = splitter->ends(run, begin, ends);
      for (size_t i = 0; i < count; begin = ends[i++]) {
        words.emplace_back(run.substr(begin, ends[i] - begin));
      }
    }
    if (!valid) {
      words.emplace_back(run);
    }
  });
  return words;
}

using Words = std::vector<std::string>;

} // namespace

TEST_CASE("words of GPT-2, by hand") {
  CHECK(words("").empty());
  CHECK(words("Hello world") == Words{"Hello", " world"});
  CHECK(
      words("it's we'll I'm they've you're he'd can't X'S") ==
      Words{
          "it",
          "'s",
          " we",
          "'ll",
          " I",
          "'m",
          " they",
          "'ve",
          " you",
          "'re",
          " he",
          "'d",
          " can",
          "'t",
          " X",
          "'",
          "S"}
  );
  CHECK(words("a  b") == Words{"a", " ", " b"});
  CHECK(words("a \n\n b") == Words{"a", " \n\n", " b"});
  CHECK(words("x = 12345;\t// c  ") == Words{"x", " =", " 12345", ";", "\t", "//", " c", "  "});
  CHECK(
      words("d\u00e9j\u00e0 \u4f60\u597d\uff0c\u0967\u0968") ==
      Words{"d\u00e9j\u00e0", " \u4f60\u597d", "\uff0c", "\u0967\u0968"}
  );
  CHECK(words("\U0001F469\u200D\U0001F680 ok") == Words{"\U0001F469\u200D\U0001F680", " ok"});
  CHECK(words("a\u00a0b\u3000") == Words{"a", "\u00a0", "b", "\u3000"});
  CHECK(words("a\u180eb") == Words{"a", "\u180e", "b"}); // no space since Unicode 6.3
}

TEST_CASE("bytes that are no UTF-8 are words of their own") {
  CHECK(
      words("ab\xFF\xFE"
            "cd") == Words{"ab", "\xFF\xFE", "cd"}
  );
  CHECK(words("a \xE4\xBD") == Words{"a", " ", "\xE4\xBD"});
  CHECK(
      words("\xC0\x80\xED\xA0\x80\xF4\x90\x80\x80x") ==
      Words{"\xC0\x80\xED\xA0\x80\xF4\x90\x80\x80", "x"}
  );
  CHECK(words(std::string("a\0b", 3)) == Words{"a", std::string(1, '\0'), "b"});
}

TEST_CASE("how much of a text is UTF-8") {
  using mh::text::valid_prefix;
  for (const std::string good :
       {"",
        "a",
        "\xC2\x80",
        "\xDF\xBF",
        "\xE0\xA0\x80",
        "\xED\x9F\xBF",
        "\xEE\x80\x80",
        "\xF0\x90\x80\x80",
        "\xF4\x8F\xBF\xBF"}) {
    for (const std::string before : {"", "x", "1234567", "12345678", "123456789\u00e9"}) {
      CHECK(valid_prefix(before + good) == (before + good).size());
      CHECK(valid_prefix(before + good + "\x80") == (before + good).size());
      if (good.size() > 1) {
        CHECK(valid_prefix(before + good.substr(0, good.size() - 1)) == before.size());
        CHECK(valid_prefix(before + good.substr(0, good.size() - 1) + "z") == before.size());
      }
    }
  }
  for (const std::string bad :
       {"\x80",
        "\xC1\xBF",
        "\xE0\x9F\xBF",
        "\xED\xA0\x80",
        "\xF0\x8F\xBF\xBF",
        "\xF4\x90\x80\x80",
        "\xF5\x80\x80\x80",
        "\xFF"}) {
    CHECK(valid_prefix("ok" + bad) == 2);
  }
}

TEST_CASE("Unigram: sums of long texts do not lose what tells two ways apart") {
  mh::text::UnigramModel model;
  model.pieces.add("a", 0);
  model.pieces.add("aa", 1);
  model.scores = {-2.0078125, -4.015625}; // twice as much: exact sums up to 2^17
  model.unknown_score = -14;
  std::vector<int32_t> ids;
  model.encode(std::string(400'000, 'a'), ids);
  CHECK(ids == std::vector<int32_t>(200'000, 1));
}
