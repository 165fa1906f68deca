#pragma once
/// The view of a splitter: a place in a text, and the category of the character there.

#include "core/text/unicode.hpp"
#include "core/text/utf8.hpp"

#include <array>
#include <string_view>

namespace mh::text {

/// Moves over valid UTF-8.
class Cursor {
public:
  Cursor(const char* at, const char* end)
      : at_(at)
      , end_(end) {}

  [[nodiscard]] const char* at() const { return at_; }

  [[nodiscard]] bool ended() const { return at_ == end_; }

  /// The character's category, of which `set_of` is a set of one; none at the end.
  [[nodiscard]] Categories here() const {
    if (at_ == end_) {
      return 0;
    }
    const auto byte = static_cast<unsigned char>(*at_);
    return byte < 0x80 ? kAscii[byte] : far(at_);
  }

  [[nodiscard]] bool in(Categories set) const { return (here() & set) != 0; }

  [[nodiscard]] bool is(char c) const { return at_ != end_ && *at_ == c; }

  /// One character on.
  void step() { at_ += length_of(*at_); }

  /// Over all characters of a set.
  void skip(Categories set) {
    while (at_ != end_) {
      const auto byte = static_cast<unsigned char>(*at_);
      if (byte < 0x80) {
        if ((kAscii[byte] & set) == 0) {
          return;
        }
        ++at_;
      } else {
        if ((far(at_) & set) == 0) {
          return;
        }
        at_ += length_of(*at_);
      }
    }
  }

  /// Over at most `most` characters of a set.
  void skip(Categories set, int most) {
    for (; most > 0 && in(set); --most) {
      step();
    }
  }

  void move_to(const char* at) { at_ = at; }

  [[nodiscard]] static size_t length_of(char first) {
    const auto byte = static_cast<unsigned char>(first);
    return byte < 0x80 ? 1 : byte < 0xE0 ? 2 : byte < 0xF0 ? 3 : 4;
  }

  /// The character before `at`, which is not the first.
  [[nodiscard]] static const char* before(const char* at) {
    do {
      --at;
    } while ((static_cast<unsigned char>(*at) & 0xC0) == 0x80);
    return at;
  }

private:
  [[nodiscard]] static Categories far(const char* at) { return set_of(kTable[decode_at(at).code]); }

  static const CategoryTable& kTable;
  static const std::array<Categories, 128> kAscii;

  const char* at_;
  const char* end_;
};

enum class SpaceRule : uint8_t {
  any,             ///< `\s+(?!\S)|\s+`
  lines,           ///< `\s*[\r\n]+` before that
  lines_after_end, ///< `\s++$` before both
};

/// The end of the word of white space at the cursor, which is on such.
template <class AnyCursor>
[[nodiscard]] const char* spaces_end(AnyCursor cursor, SpaceRule rule) {
  const char* const begin = cursor.at();
  const char* after_break = nullptr;
  const char* last = begin;
  for (Categories here = cursor.here(); (here & kSpaces) != 0; here = cursor.here()) {
    last = cursor.at();
    cursor.step();
    if ((here & kLineBreaks) != 0) {
      after_break = cursor.at();
    }
  }
  const bool ended = cursor.ended();
  if (after_break != nullptr && rule != SpaceRule::any &&
      !(ended && rule == SpaceRule::lines_after_end)) {
    return after_break;
  }
  return ended || last == begin ? cursor.at() : last;
}

} // namespace mh::text
