#pragma once
/// Characters as the shell reads them.

#include <cctype>
#include <cstddef>
#include <string_view>

namespace mh::shell {

/// Whether the character may stand in a variable's name.
[[nodiscard]] inline bool is_name(char c, bool first) {
  const auto byte = static_cast<unsigned char>(c);
  return c == '_' || std::isalpha(byte) != 0 || (!first && std::isdigit(byte) != 0);
}

/// Bytes of the name that a text begins with.
[[nodiscard]] inline size_t name_length(std::string_view text) {
  size_t length = 0;
  while (length < text.size() && is_name(text[length], length == 0)) {
    ++length;
  }
  return length;
}

[[nodiscard]] inline bool is_blank(char c) {
  return c == ' ' || c == '\t' || c == '\r';
}

} // namespace mh::shell
