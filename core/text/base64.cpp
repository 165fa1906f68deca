#include "core/text/base64.hpp"

#include <cstdint>

namespace mh::text {

bool from_base64(std::string_view text, std::string& ret_bytes) {
  while (text.ends_with('=')) {
    text.remove_suffix(1);
  }
  uint32_t bits = 0;
  int count = 0;
  for (const char c : text) {
    const int value = c >= 'A' && c <= 'Z'   ? c - 'A'
                      : c >= 'a' && c <= 'z' ? c - 'a' + 26
                      : c >= '0' && c <= '9' ? c - '0' + 52
                      : c == '+'             ? 62
                      : c == '/'             ? 63
                                             : -1;
    if (value < 0) {
      return false;
    }
    bits = bits << 6 | static_cast<uint32_t>(value);
    count += 6;
    if (count >= 8) {
      count -= 8;
      ret_bytes += static_cast<char>(bits >> count & 0xFF);
    }
  }
  return text.size() % 4 != 1;
}

} // namespace mh::text
