#include "core/draw/terminal.hpp"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>

namespace mh {

namespace {

const char* code(Paint paint) {
  switch (paint) {
  case Paint::plain:
    return "";
  case Paint::bold:
    return "1";
  case Paint::dim:
    return "2";
  case Paint::red:
    return "31";
  case Paint::green:
    return "32";
  case Paint::yellow:
    return "33";
  case Paint::blue:
    return "34";
  case Paint::magenta:
    return "35";
  case Paint::cyan:
    return "36";
  case Paint::bright_green:
    return "92";
  case Paint::bright_blue:
    return "94";
  }
  return "";
}

} // namespace

Terminal Terminal::of(int file_descriptor) {
  Terminal terminal;
  const char* term = std::getenv("TERM");
  const char* no_color = std::getenv("NO_COLOR");
  terminal.interactive =
      isatty(file_descriptor) == 1 && (term == nullptr || std::string_view(term) != "dumb");
  terminal.colour = terminal.interactive && (no_color == nullptr || *no_color == '\0');
  winsize size{};
  if (terminal.interactive && ioctl(file_descriptor, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) {
    terminal.width = size.ws_col;
    terminal.height = size.ws_row > 0 ? size.ws_row : terminal.height;
  }
  return terminal;
}

std::string Terminal::paint(Paint paint, std::string_view text) const {
  if (!colour || paint == Paint::plain) {
    return std::string(text);
  }
  return std::string("\x1b[") + code(paint) + "m" + std::string(text) + "\x1b[0m";
}

std::string bar(double share, int columns) {
  static constexpr std::array<const char*, 8> kEighths{"", "▏", "▎", "▍", "▌", "▋", "▊", "▉"};
  const int eighths = static_cast<int>(std::lround(std::clamp(share, 0.0, 1.0) * 8 * columns));
  std::string text;
  for (int i = 0; i < eighths / 8; ++i) {
    text += "█";
  }
  text += kEighths[static_cast<size_t>(eighths % 8)];
  for (int i = (eighths + 7) / 8; i < columns; ++i) {
    text += ' ';
  }
  return text;
}

int cells(std::string_view text) {
  int count = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\x1b') {
      i = std::min(text.find('m', i), text.size() - 1);
    } else if ((static_cast<unsigned char>(text[i]) & 0xC0) != 0x80) {
      ++count;
    }
  }
  return count;
}

} // namespace mh
