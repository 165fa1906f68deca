#include "core/host/terminal.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <sys/ioctl.h>
#include <unistd.h>

namespace mh {

namespace {

std::string format(const char* pattern, double value) {
  std::array<char, 64> text{};
  std::snprintf(text.data(), text.size(), pattern, value);
  return text.data();
}

std::string two_parts(int64_t large, const char* unit, int64_t small, const char* small_unit) {
  std::array<char, 64> text{};
  std::snprintf(text.data(), text.size(), "%ld %s %02ld %s", large, unit, small, small_unit);
  return text.data();
}

/// Three significant digits and a suffix.
std::string scaled(double value, double base, const std::array<const char*, 6>& suffixes) {
  size_t step = 0;
  while (std::abs(value) >= base && step + 1 < suffixes.size()) {
    value /= base;
    ++step;
  }
  const char* pattern = step == 0 || std::abs(value) >= 100 ? "%.0f" : std::abs(value) >= 10 ? "%.1f" : "%.2f";
  return format(pattern, value) + suffixes[step];
}

const char* code(Paint paint) {
  switch (paint) {
    case Paint::plain: return "";
    case Paint::bold: return "1";
    case Paint::dim: return "2";
    case Paint::red: return "31";
    case Paint::green: return "32";
    case Paint::yellow: return "33";
    case Paint::blue: return "34";
    case Paint::cyan: return "36";
  }
  return "";
}

}  // namespace

Terminal Terminal::of(int file_descriptor) {
  Terminal terminal;
  const char* term = std::getenv("TERM");
  const char* no_color = std::getenv("NO_COLOR");
  terminal.interactive = isatty(file_descriptor) == 1 && (term == nullptr || std::string_view(term) != "dumb");
  terminal.colour = terminal.interactive && (no_color == nullptr || *no_color == '\0');
  winsize size{};
  if (terminal.interactive && ioctl(file_descriptor, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) {
    terminal.width = size.ws_col;
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

std::string duration(double seconds) {
  if (!std::isfinite(seconds)) {
    return "unknown";
  }
  if (seconds < 1) {
    return format("%.0f ms", seconds * 1000);
  }
  if (seconds < 60) {
    return format("%.1f s", seconds);
  }
  const auto whole = static_cast<int64_t>(std::lround(seconds));
  if (whole < 3600) {
    return two_parts(whole / 60, "min", whole % 60, "s");
  }
  if (whole < 86400) {
    return two_parts(whole / 3600, "h", whole % 3600 / 60, "min");
  }
  return two_parts(whole / 86400, "d", whole % 86400 / 3600, "h");
}

std::string short_count(double count) { return scaled(count, 1000, {"", "k", "M", "B", "T", "P"}); }

std::string short_bytes(double bytes) {
  return scaled(bytes, 1024, {" B", " KiB", " MiB", " GiB", " TiB", " PiB"});
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

}  // namespace mh
