#include "core/base/number_text.hpp"

#include <algorithm>
#include <cstdarg>
#include <cstdio>

namespace mh {

std::string formatted(const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  va_list again;
  va_copy(again, arguments);
  std::string text(
      static_cast<size_t>(std::max(0, std::vsnprintf(nullptr, 0, format, arguments))), '\0'
  );
  std::vsnprintf(text.data(), text.size() + 1, format, again);
  va_end(again);
  va_end(arguments);
  return text;
}

std::string grouped(int64_t number) {
  const std::string digits = std::to_string(number);
  std::string text;
  for (size_t i = 0; i < digits.size(); ++i) {
    const size_t left = digits.size() - i;
    if (i > (number < 0 ? 1U : 0U) && left % 3 == 0) {
      text += ',';
    }
    text += digits[i];
  }
  return text;
}

std::string counted(int64_t number, const std::string& noun) {
  return grouped(number) + " " + noun + (number == 1 ? "" : "s");
}

std::string bytes_text(int64_t bytes) {
  const auto size = static_cast<double>(bytes);
  if (size < 1e6) {
    return formatted("%.1f kB", size / 1e3);
  }
  return size < 1e9 ? formatted("%.1f MB", size / 1e6) : formatted("%.2f GB", size / 1e9);
}

std::string duration_text(double seconds) {
  const auto whole = static_cast<int64_t>(seconds + 0.5);
  if (whole < 60) {
    return formatted("%ds", static_cast<int>(whole));
  }
  if (whole < 3600) {
    return formatted("%dm %02ds", static_cast<int>(whole / 60), static_cast<int>(whole % 60));
  }
  return formatted("%dh %02dm", static_cast<int>(whole / 3600), static_cast<int>(whole / 60 % 60));
}

} // namespace mh
