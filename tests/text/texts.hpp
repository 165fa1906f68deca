#pragma once
/// Random texts for tests: pieces that splitters treat in ways of their own, and any character of
/// Unicode 16.

#include "core/text/unicode.hpp"
#include "core/text/utf8.hpp"

#include <array>
#include <random>
#include <string>

namespace mh::text {

inline std::string random_text(std::mt19937& random, size_t pieces) {
  constexpr std::array kPieces{
      " ",       "  ",  "\n",    "\r\n", "\t",     "\u3000", "\u00A0", "'s", "'S",
      "'\u017F", "'ll", "'VE",   "'t",   "'",      "12",     "1234",   "a",  "Bc",
      "DEF",     "gH",  "!",     "//",   "/\n",    "\u0301", "é",      "ß",  "Ǆ",
      "ǅ",       "ʰ",   "中文",  "かな", "한",     "٣",      "Ⅷ",      "½",  "😀",
      "_",       ".",   "?!",    "\x01", "\u200D", "\u2028", "\u0085", "x1", "\xF0\x91\xBC\x84",
      "<s>",     "▁",   "\u180E"};
  std::string text;
  for (size_t i = 0; i < pieces; ++i) {
    if (random() % 4 != 0) {
      text += kPieces[random() % kPieces.size()];
      continue;
    }
    char32_t code = 0;
    do {
      code = random() % (random() % 2 == 0 ? 0x3000 : uint32_t{kCodePoints});
    } while (categories().in(code, set_of(Category::Cs) | set_of(Category::Cn)));
    append_utf8(code, text);
  }
  return text;
}

} // namespace mh::text
