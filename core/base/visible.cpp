#include "core/base/visible.hpp"

#include <algorithm>
#include <cstdio>
#include <iterator>

namespace mh {

namespace {

struct CodeRange {
  char32_t first, last;
};

constexpr CodeRange kInvisible[] = {
    {0x00, 0x1F},
    {0x7F, 0x9F},
    {0xAD, 0xAD},       // soft hyphen
    {0x61C, 0x61C},     // Arabic letter mark
    {0x180E, 0x180E},   // Mongolian vowel separator
    {0x200B, 0x200B},   // zero width space; its neighbours join letters of some scripts
    {0x200E, 0x200F},   // marks of direction
    {0x2028, 0x202E},   // separators, embeddings, overrides
    {0x2060, 0x206F},   // joiners, isolates
    {0xFEFF, 0xFEFF},   // zero width no-break space
    {0xFFF9, 0xFFFB},   // interlinear annotation
    {0xE0000, 0xE007F}, // tags
};

struct ReadCode {
  char32_t code = 0;
  size_t length = 0; ///< 0 if these bytes are no character
};

ReadCode first_code(std::string_view text) {
  const auto byte = static_cast<unsigned char>(text[0]);
  if (byte < 0x80) {
    return {byte, 1};
  }
  const size_t length = byte >= 0xC2 && byte < 0xE0   ? 2
                        : byte >= 0xE0 && byte < 0xF0 ? 3
                        : byte >= 0xF0 && byte < 0xF5 ? 4
                                                      : 0;
  if (length == 0 || text.size() < length) {
    return {};
  }
  char32_t code = byte & (0xFF >> (length + 1));
  for (size_t i = 1; i < length; ++i) {
    const auto next = static_cast<unsigned char>(text[i]);
    if ((next & 0xC0) != 0x80) {
      return {};
    }
    code = code << 6 | (next & 0x3F);
  }
  return {code, length};
}

bool is_invisible(char32_t code) {
  return std::any_of(std::begin(kInvisible), std::end(kInvisible), [code](const CodeRange& range) {
    return code >= range.first && code <= range.last;
  });
}

} // namespace

std::string visible(std::string_view text, std::string_view kept) {
  std::string shown;
  while (!text.empty()) {
    const auto [code, length] = first_code(text);
    char escape[16];
    if (length == 0 || (code < 0x100 && is_invisible(code) && kept.find(text[0]) == kept.npos)) {
      const auto value = length == 0 ? static_cast<unsigned char>(text[0]) : unsigned(code);
      std::snprintf(escape, sizeof escape, "\\x%02x", value);
      shown += escape;
    } else if (code >= 0x100 && is_invisible(code)) {
      std::snprintf(escape, sizeof escape, "\\u%04x", unsigned(code));
      shown += escape;
    } else {
      shown += text.substr(0, length);
    }
    text.remove_prefix(std::max<size_t>(1, length));
  }
  return shown;
}

bool has_invisible(std::string_view name) {
  return visible(name) != name;
}

} // namespace mh
