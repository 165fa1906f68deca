#include "core/text/utf8.hpp"

#include <cstring>

namespace mh::text {

size_t character_length(std::string_view text) {
  const auto byte = [&](size_t i) {
    return i < text.size() ? static_cast<unsigned char>(text[i]) : uint8_t{0};
  };
  const auto follows = [&](size_t i) { return (byte(i) & 0xC0) == 0x80; };
  const uint8_t first = byte(0), second = byte(1);
  if (first < 0x80) {
    return text.empty() ? 0 : 1;
  }
  if (first >= 0xC2 && first <= 0xDF) {
    return follows(1) ? 2 : 0;
  }
  if (first >= 0xE0 && first <= 0xEF) {
    const bool overlong = first == 0xE0 && second < 0xA0;
    const bool surrogate = first == 0xED && second > 0x9F;
    return follows(1) && follows(2) && !overlong && !surrogate ? 3 : 0;
  }
  if (first >= 0xF0 && first <= 0xF4) {
    const bool overlong = first == 0xF0 && second < 0x90;
    const bool too_large = first == 0xF4 && second > 0x8F;
    return follows(1) && follows(2) && follows(3) && !overlong && !too_large ? 4 : 0;
  }
  return 0;
}

size_t valid_prefix(std::string_view text) {
  size_t at = 0;
  while (at < text.size()) {
    uint64_t eight = 0;
    if (at + sizeof(eight) <= text.size()) {
      std::memcpy(&eight, text.data() + at, sizeof(eight));
      if ((eight & 0x8080808080808080) == 0) {
        at += sizeof(eight);
        continue;
      }
    }
    const size_t length = character_length(text.substr(at, 4));
    if (length == 0) {
      break;
    }
    at += length;
  }
  return at;
}

void append_utf8(char32_t code, std::string& ret_text) {
  const auto tail = [&](unsigned shift) {
    ret_text += static_cast<char>(0x80 | ((code >> shift) & 0x3F));
  };
  if (code < 0x80) {
    ret_text += static_cast<char>(code);
  } else if (code < 0x800) {
    ret_text += static_cast<char>(0xC0 | code >> 6);
    tail(0);
  } else if (code < 0x10000) {
    ret_text += static_cast<char>(0xE0 | code >> 12);
    tail(6);
    tail(0);
  } else {
    ret_text += static_cast<char>(0xF0 | code >> 18);
    tail(12);
    tail(6);
    tail(0);
  }
}

std::u32string code_points(std::string_view text) {
  std::u32string codes;
  codes.reserve(text.size());
  for_each_character(text, [&](char32_t code, std::string_view) { codes += code; });
  return codes;
}

namespace {

/// Bytes at the beginning of `text` that begin a character which does not go on; 1 at least.
size_t broken_length(std::string_view text) {
  for (size_t length = std::min<size_t>(3, text.size()); length > 1; --length) {
    for (const char* rest : {"\x80", "\xBF", "\x80\x80", "\xBF\xBF"}) {
      const std::string whole = std::string(text.substr(0, length)) + rest;
      if (character_length(whole) == whole.size()) {
        return length;
      }
    }
  }
  return 1;
}

} // namespace

std::string replace_invalid(std::string_view text) {
  std::string replaced;
  for_each_run(text, [&](std::string_view part, bool valid) {
    if (valid) {
      replaced += part;
      return;
    }
    while (!part.empty()) {
      replaced += "\xEF\xBF\xBD";
      part.remove_prefix(broken_length(part));
    }
  });
  return replaced;
}

} // namespace mh::text
