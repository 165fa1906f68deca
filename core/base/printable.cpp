#include "core/base/printable.hpp"

#include "core/base/visible.hpp"

namespace mh {

std::string printable(std::string_view name) {
  constexpr size_t kLongest = 80;
  constexpr const char* kHex = "0123456789abcdef";
  std::string text = "\"";
  for (const char c : name.substr(0, kLongest)) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      text += {'\\', c};
    } else if (byte < 0x20 || byte > 0x7E) {
      text += {'\\', 'x', kHex[byte >> 4], kHex[byte & 15]};
    } else {
      text += c;
    }
  }
  return text + (name.size() > kLongest ? "...\"" : "\"");
}

bool is_file_name(std::string_view name) {
  constexpr size_t kLongest = 255;
  return !name.empty() && name.size() <= kLongest && name != "." && name != ".." &&
         name.find('/') == std::string_view::npos && !has_invisible(name);
}

} // namespace mh
