#pragma once
/// UTF-8: what is valid, and its characters.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace mh::text {

/// Length of the character at the beginning of `text`; 0 if there is none.
///
/// Source:  The Unicode Standard, table 3-7, well-formed UTF-8 byte sequences
[[nodiscard]] size_t character_length(std::string_view text);

/// Bytes at the beginning of `text` that are valid UTF-8.
[[nodiscard]] size_t valid_prefix(std::string_view text);

/// Length of what begins `text`, which is not empty, by its first byte alone: whole characters of
/// valid UTF-8, and of other bytes at least one and no more than there are.
[[nodiscard]] inline size_t first_length(std::string_view text) {
  const auto byte = static_cast<unsigned char>(text[0]);
  const size_t length = byte < 0xC0 ? 1 : byte < 0xE0 ? 2 : byte < 0xF0 ? 3 : 4;
  return length < text.size() ? length : text.size();
}

/// A character and its length in bytes.
struct Character {
  char32_t code;
  uint32_t length;
};

/// The character at `at` of valid UTF-8 that goes on there.
[[nodiscard]] inline Character decode_at(const char* at) {
  const auto byte = [&](int i) { return static_cast<char32_t>(static_cast<unsigned char>(at[i])); };
  const char32_t first = byte(0);
  if (first < 0x80) {
    return {first, 1};
  }
  if (first < 0xE0) {
    return {(first & 0x1F) << 6 | (byte(1) & 0x3F), 2};
  }
  if (first < 0xF0) {
    return {(first & 0x0F) << 12 | (byte(1) & 0x3F) << 6 | (byte(2) & 0x3F), 3};
  }
  return {
      (first & 0x07) << 18 | (byte(1) & 0x3F) << 12 | (byte(2) & 0x3F) << 6 | (byte(3) & 0x3F), 4};
}

void append_utf8(char32_t code, std::string& ret_text);

/// Valid UTF-8 as code points.
[[nodiscard]] std::u32string code_points(std::string_view text);

/// Calls `take(code, its bytes)` for each character of valid UTF-8.
template <class Take>
void for_each_character(std::string_view text, Take take) {
  for (size_t at = 0; at < text.size();) {
    const Character c = decode_at(text.data() + at);
    take(c.code, text.substr(at, c.length));
    at += c.length;
  }
}

/// `text` with U+FFFD for bytes that are no UTF-8: one for each longest beginning of a character,
/// as Python's and Rust's conversions have it.
[[nodiscard]] std::string replace_invalid(std::string_view text);

/// Calls `take(part, valid)` for each run of valid UTF-8 and each run of other bytes, in order.
template <class Take>
void for_each_run(std::string_view text, Take take) {
  while (!text.empty()) {
    const size_t valid = valid_prefix(text);
    if (valid > 0) {
      take(text.substr(0, valid), true);
      text.remove_prefix(valid);
    }
    size_t broken = 0;
    while (broken < text.size() && character_length(text.substr(broken, 4)) == 0) {
      ++broken;
    }
    if (broken > 0) {
      take(text.substr(0, broken), false);
      text.remove_prefix(broken);
    }
  }
}

} // namespace mh::text
