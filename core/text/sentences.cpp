#include "core/text/sentences.hpp"

#include "core/text/unicode.hpp"
#include "core/text/utf8.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <optional>
#include <utility>

namespace mh::text {

namespace {

constexpr std::array<std::string_view, 58> kAbbreviations{
    "approx", "apr",  "aug",  "ave", "al",  "blvd", "ca",   "capt", "cf",  "ch",   "co",  "col",
    "corp",   "dec",  "dept", "dr",  "ed",  "eds",  "eq",   "eqs",  "est", "et",   "etc", "feb",
    "fig",    "figs", "gen",  "gov", "hon", "inc",  "jan",  "jr",   "lt",  "ltd",  "mar", "mr",
    "mrs",    "ms",   "mt",   "no",  "nos", "nov",  "oct",  "op",   "pp",  "prof", "ref", "rev",
    "sec",    "sen",  "sept", "sgt", "sr",  "st",   "univ", "viz",  "vol", "vs"};

enum class Mark : uint8_t {
  none,
  stop,  ///< a full stop, which may be an abbreviation's
  end,   ///< ends a sentence where white space follows
  alone, ///< ends a sentence by itself
};

Mark mark_of(char32_t code) {
  switch (code) {
  case U'.':
    return Mark::stop;
  case U'!':
  case U'?':
  case U'\u2026': // ...
  case U'\u203C': // !!
  case U'\u203D':
  case U'\u2047':
  case U'\u2048':
  case U'\u2049':
  case U'\u0589': // Armenian
  case U'\u061F': // Arabic
  case U'\u06D4':
  case U'\u0964': // Devanagari
  case U'\u0965':
  case U'\u104B': // Myanmar
  case U'\u1362': // Ethiopic
    return Mark::end;
  case U'\u3002': // ideographic
  case U'\uFF01':
  case U'\uFF0E':
  case U'\uFF1F':
  case U'\uFF61':
    return Mark::alone;
  default:
    return Mark::none;
  }
}

bool is_space(char32_t code) {
  return categories().in(code, kSpaces);
}

bool is_closer(char32_t code) {
  constexpr Categories kClosers =
      set_of(Category::Pe) | set_of(Category::Pf) | set_of(Category::Pi);
  return code == U'"' || code == U'\'' || categories().in(code, kClosers);
}

bool is_opener(char32_t code) {
  constexpr Categories kOpeners =
      set_of(Category::Ps) | set_of(Category::Pi) | set_of(Category::Pf);
  return code == U'"' || code == U'\'' || categories().in(code, kOpeners);
}

/// A text with its place, for looking around.
class SentenceReader {
public:
  explicit SentenceReader(std::string_view text)
      : text_(text) {}

  std::vector<std::string_view> read() {
    std::vector<std::string_view> found;
    while (at_ < text_.size()) {
      const size_t here = at_;
      const char32_t code = take();
      if (is_space(code)) {
        if (const auto behind = blank_line(here)) {
          add(found, here);
          begin_ = at_ = *behind;
        }
      } else if (ends(here, mark_of(code))) {
        add(found, at_);
        begin_ = at_;
      }
    }
    add(found, text_.size());
    return found;
  }

private:
  [[nodiscard]] std::optional<Character> peek(size_t at) const {
    if (at >= text_.size()) {
      return std::nullopt;
    }
    const std::string_view rest = text_.substr(at);
    if (character_length(rest) == 0) {
      return Character{0xFFFD, 1}; // no UTF-8: a character that ends nothing
    }
    return decode_at(rest.data());
  }

  char32_t take() {
    const Character c = *peek(at_);
    at_ += c.length;
    return c.code;
  }

  /// Behind the white space that begins at `at`, if it holds an empty line.
  [[nodiscard]] std::optional<size_t> blank_line(size_t at) const {
    int lines = 0;
    while (const auto c = peek(at)) {
      if (!is_space(c->code)) {
        break;
      }
      lines += c->code == U'\n' || c->code == U'\u2029' ? 1 : 0;
      at += c->length;
    }
    return lines > 1 ? std::optional(at) : std::nullopt;
  }

  /// Whether a mark ends its sentence; the reader then stands behind all that belongs to it.
  bool ends(size_t mark_begin, Mark mark) {
    if (mark == Mark::none) {
      return false;
    }
    size_t behind = at_, marks = 1;
    bool alone = mark == Mark::alone;
    for (auto c = peek(behind); c && mark_of(c->code) != Mark::none; c = peek(behind)) {
      alone = alone || mark_of(c->code) == Mark::alone;
      behind += c->length;
      ++marks;
    }
    if (mark == Mark::stop && marks == 1 && is_abbreviation(mark_begin)) {
      return false;
    }
    for (auto c = peek(behind); c && is_closer(c->code); c = peek(behind)) {
      behind += c->length;
    }
    const auto next = peek(behind);
    if (!alone && next && (!is_space(next->code) || goes_on(behind))) {
      return false;
    }
    at_ = behind;
    return true;
  }

  /// Whether the first letter or digit behind white space is a small letter.
  [[nodiscard]] bool goes_on(size_t at) const {
    auto c = peek(at);
    while (c && (is_space(c->code) || is_opener(c->code))) {
      at += c->length;
      c = peek(at);
    }
    return c && categories()[c->code] == Category::Ll;
  }

  /// Whether the word before a full stop is an initial, an abbreviation, or a line's number.
  [[nodiscard]] bool is_abbreviation(size_t stop) const {
    const auto is_word = [](char c) {
      return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
             c == '.' || (static_cast<unsigned char>(c) & 0x80) != 0;
    };
    size_t first = stop;
    while (first > begin_ && is_word(text_[first - 1])) {
      --first;
    }
    const std::string_view word = text_.substr(first, stop - first);
    if (!word.empty() && std::ranges::all_of(word, [](char c) { return c >= '0' && c <= '9'; })) {
      const size_t line = text_.substr(0, first).find_last_not_of(" \t");
      return line == std::string_view::npos || text_[line] == '\n';
    }
    const size_t inner = word.rfind('.'); // "e.g", "U.S"
    const std::string_view last = inner == std::string_view::npos ? word : word.substr(inner + 1);
    if (character_length(last) == last.size() && !last.empty()) {
      return categories().in(decode_at(last.data()).code, kLetters);
    }
    std::string lower(last);
    std::ranges::transform(lower, lower.begin(), [](char c) {
      return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
    });
    return std::ranges::find(kAbbreviations, lower) != kAbbreviations.end();
  }

  void add(std::vector<std::string_view>& ret_found, size_t end) const {
    size_t first = begin_, last = begin_; // behind the last character that is no white space
    bool empty = true;
    for (size_t at = begin_; at < end;) {
      const Character c = *peek(at);
      at += c.length;
      if (!is_space(c.code)) {
        first = empty ? at - c.length : first;
        last = at;
        empty = false;
      }
    }
    if (!empty) {
      ret_found.push_back(text_.substr(first, last - first));
    }
  }

  std::string_view text_;
  size_t at_ = 0, begin_ = 0;
};

} // namespace

std::vector<std::string_view> sentences(std::string_view text) {
  return SentenceReader(text).read();
}

} // namespace mh::text
