#include "core/draw/svg.hpp"

#include "core/base/text.hpp"

namespace mh::svg {

std::string escaped(const std::string& text) {
  std::string safe;
  for (const char c : valid_utf8(text)) {
    switch (c) {
    case '&':
      safe += "&amp;";
      break;
    case '<':
      safe += "&lt;";
      break;
    case '>':
      safe += "&gt;";
      break;
    default:
      safe += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
    }
  }
  return safe;
}

std::string
text_at(double x, double y, const char* classes, const char* anchor, const std::string& text) {
  return format(R"(<text x="%.1f" y="%.1f" class="%s" text-anchor="%s">)", x, y, classes, anchor) +
         escaped(text) + "</text>\n";
}

std::string document(const std::string& title, int width, int height) {
  return format(
             R"(<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%d" height="%d" role="img">)",
             width,
             height,
             width,
             height
         ) +
         "\n<title>" + escaped(title) + "</title>\n" + kStyle;
}

} // namespace mh::svg
