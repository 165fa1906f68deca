#include "core/text/unicode.hpp"

#include "core/text/normal_form.hpp"
#include "core/text/utf8.hpp"
#include "tests/text/texts.hpp"

#include <doctest/doctest.h>

using namespace mh::text;

namespace {

std::string lower(std::string_view text) {
  std::string result;
  for_each_character(text, [&](char32_t code, std::string_view) { append_lower(code, result); });
  return result;
}

} // namespace

TEST_CASE("categories of Unicode 16") {
  const CategoryTable& table = categories();
  CHECK(table['A'] == Category::Lu);
  CHECK(table['_'] == Category::Pc);
  CHECK(table[0x01C5] == Category::Lt);
  CHECK(table[0x11F04] == Category::Lo); // 15.0
  CHECK(table[0x10D4A] == Category::Lo); // 16.0
  CHECK(table[0x10FFFF] == Category::Cn);
  CHECK(table[0xD800] == Category::Cs);
  CHECK(table.in(0x85, kSpaces));
  CHECK(table.in(0x85, kControls));
  CHECK(table.in(0x2028, kSpaces));
  CHECK_FALSE(table.in(0x180E, kSpaces));
  CHECK_FALSE(table.in(0x200B, kSpaces));
  size_t letters = 0, spaces = 0;
  for (char32_t code = 0; code < kCodePoints; ++code) {
    letters += table.in(code, kLetters) ? 1 : 0;
    spaces += table.in(code, kSpaces) ? 1 : 0;
  }
  CHECK(letters == 141028);
  CHECK(spaces == 25);
}

TEST_CASE("lower case") {
  CHECK(lower("AZaz[ÀÞ×ÿ") == "azaz[àþ×ÿ");
  CHECK(lower("ĀāǄǅẞΣΩ") == "āāǆǆßσω");
  CHECK(lower("\u0130") == "i\u0307");
  CHECK(lower("\xF0\x90\xB5\x90") == "\xF0\x90\xB5\xB0"); // U+10D50, Unicode 16
  CHECK(lower("\uA7DC") == "\u019B");
}

TEST_CASE("normal forms") {
  using enum NormalForm;
  CHECK(normalized("e\u0301", nfc) == "é");
  CHECK(normalized("é", nfd) == "e\u0301");
  CHECK(normalized("ﬁ①", nfc) == "ﬁ①");
  CHECK(normalized("ﬁ①ﾊﾞ", nfkc) == "fi1バ");
  CHECK(normalized("각", nfd) == "\u1100\u1161\u11A8");
  CHECK(normalized("\u1100\u1161\u11A8", nfc) == "각");
  CHECK(normalized("\u0958", nfc) == "\u0915\u093C"); // excluded from composition
  CHECK(normalized("q\u0307\u0323", nfc) == "q\u0323\u0307");
  CHECK(normalized("\u0344", nfc) == "\u0308\u0301");
  CHECK(normalized("a\u0308\u0323", nfc) == "\u1EA1\u0308");
  CHECK(normalized("\u1100\u0301\u1161", nfc) == "\u1100\u0301\u1161"); // blocked
  CHECK(normalized("plain", nfkd) == "plain");
  std::mt19937 random(3);
  for (int i = 0; i < 2000; ++i) {
    const std::string text = random_text(random, random() % 40);
    CAPTURE(text);
    CHECK(normalized(normalized(text, nfc), nfc) == normalized(text, nfc));
    CHECK(normalized(normalized(text, nfd), nfc) == normalized(text, nfc));
    CHECK(normalized(normalized(text, nfkd), nfkc) == normalized(text, nfkc));
    CHECK(normalized(normalized(text, nfc), nfkc) == normalized(text, nfkc));
  }
}

TEST_CASE("UTF-8 that is none") {
  CHECK(valid_prefix("abcdefghij\xFF") == 10);
  CHECK(valid_prefix("\xED\xA0\x80") == 0);
  CHECK(replace_invalid("a\xFF\xFE") == "a\uFFFD\uFFFD");
  CHECK(replace_invalid("\xF0\x9F\x98 ok") == "\uFFFD ok");
  CHECK(replace_invalid("\xE4\xBD") == "\uFFFD");
  CHECK(replace_invalid("\xED\xA0\x80\xC0\x80") == std::string("\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD"));
  std::u32string codes;
  for (const char32_t code :
       {U'\0', U'\x7F', U'\x80', U'\x7FF', U'\x800', U'\xFFFF', U'\x10000', U'\x10FFFF'}) {
    codes += code;
  }
  std::string text;
  for (const char32_t code : codes) {
    append_utf8(code, text);
  }
  CHECK(valid_prefix(text) == text.size());
  CHECK(code_points(text) == codes);
}
