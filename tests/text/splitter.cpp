#include "core/text/splitter.hpp"

#include "core/text/pattern.hpp"
#include "megahost/error.hpp"
#include "tests/text/texts.hpp"

#include <doctest/doctest.h>

#include <vector>

using namespace mh::text;

namespace {

using Words = std::vector<std::string>;

Words words(const Splitter& splitter, std::string_view text, size_t room = 7) {
  Words all;
  std::vector<size_t> ends(room);
  for (size_t begin = 0; begin < text.size();) {
    const size_t count = splitter.ends(text, begin, ends);
    REQUIRE(count > 0);
    for (size_t i = 0; i < count; ++i) {
      all.emplace_back(text.substr(begin, ends[i] - begin));
      begin = ends[i];
    }
  }
  return all;
}

std::unique_ptr<Splitter> compiled(std::string_view pattern, Dialect dialect) {
  return pattern_splitter(std::make_shared<Pattern>(pattern, dialect, "test"));
}

constexpr const char* kPatterns[] = {
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)",
    R"('(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s)",
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
    R"('(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|\s+(?!\S)|\s)",
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
};

/// DeepSeek's three patterns by PCRE2, each within the parts of the one before.
Words deepseek_by_patterns(const std::string& text) {
  static const std::array<Pattern, 3> patterns{
      Pattern(R"(\p{N}{1,3})", Dialect::oniguruma, "test"),
      Pattern("[一-龥぀-ゟ゠-ヿ]+", Dialect::oniguruma, "test"),
      Pattern(
          "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| "
          "?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+",
          Dialect::oniguruma,
          "test"
      )};
  Words parts{text};
  for (const Pattern& pattern : patterns) {
    Words next;
    for (const std::string& part : parts) {
      pattern.for_each_part(part, [&](size_t begin, size_t end, bool) {
        next.push_back(part.substr(begin, end - begin));
      });
    }
    parts = std::move(next);
  }
  return parts;
}

} // namespace

TEST_CASE("empty matches cut, each place once") {
  const auto parts = [](const char* expression, const std::string& text) {
    std::string all;
    Pattern(expression, Dialect::oniguruma, "test")
        .for_each_part(text, [&](size_t begin, size_t end, bool matched) {
          all += (matched ? "[" : "(") + text.substr(begin, end - begin) + (matched ? "]" : ")");
        });
    return all;
  };
  CHECK(parts(R"((?=(\d{3})+(?!\d)))", "1234567 a") == "(1)[](234)[](567 a)");
  CHECK(parts("x*", "axx\u00e9") == "[](a)[xx](\u00e9)[]");
  CHECK(parts("^", "a\nb") == "[](a\n)[](b)");
  CHECK(parts("x*", "").empty());
  const auto thousands = [](const std::string& text) {
    const auto pattern =
        std::make_shared<Pattern>(R"((?=(\d{3})+(?!\d)))", Dialect::oniguruma, "test");
    return words(*pattern_splitter(pattern), text);
  };
  CHECK(thousands("1234567 123") == Words{"1", "234", "567 ", "123"});
  CHECK(thousands("").empty());
}

TEST_CASE("words by hand") {
  const auto gpt2 = gpt2_splitter();
  CHECK(
      words(*gpt2, "We'll  see 12ab,  '\n\n x") ==
      Words{"We", "'ll", " ", " see", " 12", "ab", ",", " ", " '", "\n\n", " x"}
  );
  CHECK(words(*gpt2, "it'S") == Words{"it", "'", "S"});
  CHECK(words(*gpt2, "").empty());
  // A letter since Unicode 15, white space no longer since 6.3.
  CHECK(
      words(*gpt2, "\xF0\x91\xBC\x84's\u180E a") == Words{"\xF0\x91\xBC\x84", "'s", "\u180E", " a"}
  );
  const auto llama = known_splitter(kPatterns[2]);
  CHECK(
      words(*llama, "IT'S (a) 12345!\n\n  \n  x") ==
      Words{"IT", "'S", " (", "a", ")", " ", "123", "45", "!\n\n", "  \n", " ", " x"}
  );
  const auto o200k = known_splitter(kPatterns[6]);
  CHECK(words(*o200k, "HTMLParser isn't") == Words{"HTMLParser", " isn't"});
  CHECK(words(*o200k, "camelCase ABC") == Words{"camel", "Case", " ABC"});
}

TEST_CASE("splitters by hand cut as PCRE2 cuts by their patterns") {
  std::mt19937 random(1);
  for (const char* pattern : kPatterns) {
    CAPTURE(pattern);
    const auto by_hand = known_splitter(pattern);
    REQUIRE(by_hand);
    const auto by_pattern = compiled(pattern, Dialect::rust);
    for (int i = 0; i < 2000; ++i) {
      const std::string text = random_text(random, random() % 30);
      CAPTURE(text);
      REQUIRE(words(*by_hand, text) == words(*by_pattern, text));
    }
  }
  CHECK(known_splitter(R"(\p{L}+)") == nullptr);
}

TEST_CASE("DeepSeek's splitter cuts as its three patterns do") {
  std::mt19937 random(2);
  const auto by_hand = deepseek_splitter();
  for (int i = 0; i < 4000; ++i) {
    const std::string text = random_text(random, random() % 30);
    CAPTURE(text);
    REQUIRE(words(*by_hand, text) == deepseek_by_patterns(text));
  }
}

TEST_CASE("patterns that no table here serves are refused by what is in them") {
  for (const auto& [pattern, what] :
       {std::pair(R"(\p{Klingon}+)", "the class \"Klingon\" of characters is not known"),
        std::pair(R"([\p{L}&&[^a])", "a class without an end"),
        std::pair(R"([a&&[z-a]])", "ends before it begins"),
        std::pair(R"([a&&\q])", "the escape \"\\\\q\""),
        std::pair(R"([a&&\x{110000}])", "the escape"),
        std::pair(R"(\Xa)", "the escape \"\\\\X\" is not known"),
        std::pair("[\xC3", "is no UTF-8"),
        std::pair("[a-z--[aeiou]]", "a difference of classes (--)"),
        std::pair("[a-z~~x]", "a difference of classes (~~)"),
        std::pair("(a", "is wrong: missing closing parenthesis"),
        std::pair("[a[:alpha:]]", "the class \"[:alpha:]\" is not known"),
        std::pair("\\", "the escape"),
        std::pair("\\p", "the class"),
        std::pair("\\p{L", "the class")}) {
    CAPTURE(pattern);
    CHECK_THROWS_WITH_AS(
        (void)Pattern(pattern, Dialect::rust, "tokenizer.json: pre_tokenizer"),
        doctest::Contains(what),
        mh::Error
    );
  }
}

TEST_CASE("scripts by their names, and the ends of words") {
  const auto cut = [](const char* expression, const std::string& text) {
    return words(*compiled(expression, Dialect::oniguruma), text);
  };
  const std::string mixed = "ab\u3042\u3044\u30a2\u03b1\u0e01";
  CHECK(
      cut(R"(\p{Hiragana}+|\p{Script=Kana}+|\p{Greek}|[\p{Latin}]+)", mixed) ==
      Words{"ab", "\u3042\u3044", "\u30a2", "\u03b1", "\u0e01"}
  );
  CHECK(cut(R"(\p{Old_Italic}+)", "a\U00010300\U0001031F") == Words{"a", "\U00010300\U0001031F"});
  CHECK_THROWS_WITH(
      (void)compiled(R"(\p{Klingon})", Dialect::rust),
      doctest::Contains("\"Klingon\" of characters")
  );
  CHECK(cut(R"(\d{1,3}(?=(?:\d{3})*\b))", "1234567 12") == Words{"1", "234", "567", " ", "12"});
  CHECK(cut(R"((?i:\p{Ll}))", "aBc") == Words{"a", "B", "c"}); // in brackets both cases match
  CHECK(cut(R"((?i:[\p{Ll}]+))", "aBc") == Words{"aBc"});
  CHECK(cut(R"(\B)", "a\u00e9 -") == Words{"a", "\u00e9 ", "-"});
}

TEST_CASE("classes within classes, intersections and Han, as Kimi K2's pattern has them") {
  const auto cut = [](const char* pattern, const char* text) {
    return words(*compiled(pattern, Dialect::rust), text);
  };
  CHECK(cut(R"([\p{L}&&[^\p{Han}]]+)", "ab\u4e2d\u6587c") == Words{"ab", "\u4e2d\u6587", "c"});
  CHECK(
      cut(R"(\p{Han}+|\P{Han}+)", "ab\u3007\U000323AF \u3042") ==
      Words{"ab", "\u3007\U000323AF", " \u3042"}
  );
  CHECK(cut(R"([^a-e&&[b-z\n\x41[0-9]]]+)", "azA0c\nd-") == Words{"azA0", "c", "\n", "d", "-"});
}

TEST_CASE("what Oniguruma and PCRE2 write alike and mean otherwise") {
  const auto cut = [](const char* pattern, const char* text, Dialect dialect) {
    return words(*compiled(pattern, dialect), text);
  };
  CHECK(cut(R"(\w+)", "m\u00B2\u24B6 b", Dialect::oniguruma) == Words{"m\u00B2\u24B6", " ", "b"});
  CHECK(cut(R"(\w+)", "m\u00B2\u24B6", Dialect::rust) == Words{"m", "\u00B2", "\u24B6"});
  CHECK(cut("(?m)a.", "a\nb", Dialect::oniguruma) == Words{"a\n", "b"});
  CHECK(cut("(?m)^b", "a\nb", Dialect::rust) == Words{"a\n", "b"});
  CHECK(cut("a{,2}b|.", "aabc", Dialect::oniguruma) == Words{"aab", "c"});
  CHECK(cut("[a{,2}]+", "a2,b", Dialect::rust) == Words{"a2,", "b"});
}

TEST_CASE("words between matches, and long ones") {
  const auto splitter = compiled(R"(\d+)", Dialect::rust);
  CHECK(words(*splitter, "ab12cd3", 1) == Words{"ab", "12", "cd", "3"});
  CHECK(words(*splitter, "ab12cd3", 2) == Words{"ab", "12", "cd", "3"});
  const std::string spaces(1 << 20, ' ');
  for (const char* pattern : kPatterns) {
    CHECK(words(*known_splitter(pattern), spaces).size() == 1);
    CHECK(words(*known_splitter(pattern), spaces + "a").size() == 2);
  }
}
