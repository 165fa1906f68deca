#include "core/base/text.hpp"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>

namespace mh {

std::optional<int64_t> exact_integer(double number) {
  constexpr double kLimit = 9007199254740992.0; // 2^53: beyond it doubles skip integers
  if (std::trunc(number) != number || std::abs(number) > kLimit) {
    return std::nullopt;
  }
  return static_cast<int64_t>(number);
}

std::string number_text(double number) {
  if (std::isnan(number)) {
    return "nan";
  }
  if (std::isinf(number)) {
    return number > 0 ? "inf" : "-inf";
  }
  char buffer[32];
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, number).ptr;
  std::string text(buffer, end);
  if (text.find_first_of(".e") == std::string::npos) {
    return text + ".0";
  }
  if (const size_t e = text.find('e'); e != std::string::npos) { // 3e-04 is 3e-4, 1e+06 is 1e6
    const bool negative = text[e + 1] == '-';
    const size_t digits = text.find_first_not_of("0", e + 2);
    text = text.substr(0, e + 1) + (negative ? "-" : "") + text.substr(digits);
  }
  return text;
}

namespace {

/// Bytes of the UTF-8 character at the start of `text`; 0 if there is none.
size_t utf8_length(std::string_view text) {
  const auto byte = [&text](size_t i) { return static_cast<unsigned char>(text[i]); };
  const auto first = byte(0);
  size_t length = 0;
  uint32_t code = 0;
  if (first < 0x80) {
    return 1;
  } else if ((first & 0xE0) == 0xC0) {
    length = 2;
    code = first & 0x1F;
  } else if ((first & 0xF0) == 0xE0) {
    length = 3;
    code = first & 0x0F;
  } else if ((first & 0xF8) == 0xF0) {
    length = 4;
    code = first & 0x07;
  } else {
    return 0;
  }
  if (text.size() < length) {
    return 0;
  }
  for (size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xC0) != 0x80) {
      return 0;
    }
    code = code << 6 | (byte(i) & 0x3F);
  }
  constexpr uint32_t kSmallest[] = {0, 0, 0x80, 0x800, 0x10000};
  const bool surrogate = code >= 0xD800 && code < 0xE000;
  return code < kSmallest[length] || code > 0x10FFFF || surrogate ? 0 : length;
}

} // namespace

std::pair<std::string, std::string> split_key(const std::string& key) {
  const size_t dot = key.find('.');
  return dot == std::string::npos ? std::pair(std::string(), key)
                                  : std::pair(key.substr(0, dot), key.substr(dot + 1));
}

std::string valid_utf8(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    const size_t length = utf8_length(text);
    out += length ? text.substr(0, length) : "\xEF\xBF\xBD";
    text.remove_prefix(std::max<size_t>(length, 1));
  }
  return out;
}

size_t whole_characters(std::string_view text) {
  for (size_t back = 1; back <= std::min<size_t>(3, text.size()); ++back) {
    const auto byte = static_cast<unsigned char>(text[text.size() - back]);
    if ((byte & 0xC0) == 0x80) {
      continue; // not the first byte of a character
    }
    const size_t length = byte >= 0xF0 ? 4 : byte >= 0xE0 ? 3 : byte >= 0xC0 ? 2 : 1;
    return byte < 0xF8 && length > back ? text.size() - back : text.size();
  }
  return text.size();
}

std::string terminal_text(std::string_view text) {
  const std::string valid = valid_utf8(text);
  std::string clean;
  for (size_t i = 0; i < valid.size(); ++i) {
    const auto byte = static_cast<unsigned char>(valid[i]);
    const auto next = static_cast<unsigned char>(i + 1 < valid.size() ? valid[i + 1] : 0);
    if (byte == 0xC2 && next < 0xA0) { // U+0080 to U+009F: controls in two bytes
      clean += '?';
      ++i;
    } else if (byte == '\t') {
      clean += ' ';
    } else {
      clean += (byte >= 0x20 && byte != 0x7F) || byte == '\n' ? valid[i] : '?';
    }
  }
  return clean;
}

std::string string_text(std::string_view text) {
  std::string out = "\"";
  for (const char c : valid_utf8(text)) {
    switch (c) {
    case '"':
      out += "\\\"";
      break;
    case '\\':
      out += "\\\\";
      break;
    case '\n':
      out += "\\n";
      break;
    case '\t':
      out += "\\t";
      break;
    case '\r':
      out += "\\r";
      break;
    default:
      if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F) {
        constexpr const char* kHex = "0123456789abcdef";
        out += std::string("\\u00") + kHex[c >> 4] + kHex[c & 15];
      } else {
        out += c;
      }
    }
  }
  return out + "\"";
}

std::string lua_string(std::string_view text) {
  std::string out = string_text(text);
  for (size_t at = out.find('\\'); at != std::string::npos; at = out.find('\\', at + 2)) {
    if (out[at + 1] == 'u') { // \u001f is \x1f
      out.replace(at, 4, "\\x");
    }
  }
  return out;
}

std::string key_text(std::string_view key) {
  const bool bare = !key.empty() && std::all_of(key.begin(), key.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '-';
  });
  return bare ? std::string(key) : string_text(key);
}

size_t edit_distance(std::string_view a, std::string_view b, size_t limit) {
  if (std::max(a.size(), b.size()) - std::min(a.size(), b.size()) > limit) {
    return limit + 1;
  }
  std::vector<std::vector<size_t>> cost(a.size() + 1, std::vector<size_t>(b.size() + 1));
  for (size_t i = 0; i <= a.size(); ++i) {
    for (size_t j = 0; j <= b.size(); ++j) {
      if (i == 0 || j == 0) {
        cost[i][j] = i + j;
        continue;
      }
      cost[i][j] = std::min(
          {cost[i - 1][j] + 1, cost[i][j - 1] + 1, cost[i - 1][j - 1] + (a[i - 1] != b[j - 1])}
      );
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        cost[i][j] = std::min(cost[i][j], cost[i - 2][j - 2] + 1);
      }
    }
  }
  return std::min(cost[a.size()][b.size()], limit + 1);
}

std::optional<std::string> nearest(std::string_view word, const std::vector<std::string>& words) {
  constexpr size_t kLongest = 64;
  if (word.size() > kLongest) {
    return std::nullopt;
  }
  size_t best = std::min<size_t>(3, std::max<size_t>(1, word.size() / 2));
  std::optional<std::string> found;
  const auto begins_alike = [&](const std::string& other) {
    return word.substr(0, 1) == other.substr(0, 1);
  };
  for (const std::string& candidate : words) {
    const size_t distance = edit_distance(word, candidate, best);
    const bool tie =
        distance == best && (!found || (!begins_alike(*found) && begins_alike(candidate)));
    if (distance < best || tie) {
      best = distance;
      found = candidate;
    }
  }
  return found;
}

std::string join(const std::vector<std::string>& words, std::string_view between) {
  std::string text;
  for (const std::string& word : words) {
    text += (text.empty() ? "" : std::string(between)) + word;
  }
  return text;
}

std::optional<std::string_view> scheme_of(std::string_view path) {
  const std::string_view scheme = path.substr(0, std::min(path.find("://"), path.size()));
  const auto fits = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-' || c == '_' || c == '.';
  };
  const bool found = !scheme.empty() && scheme.size() < path.size() &&
                     std::all_of(scheme.begin(), scheme.end(), fits);
  return found ? std::optional(scheme) : std::nullopt;
}

std::string shell_word(const std::string& word) {
  const auto plain = [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 ||
           std::string_view("_-./=,:@+").find(c) != std::string_view::npos;
  };
  if (!word.empty() && std::all_of(word.begin(), word.end(), plain)) {
    return word;
  }
  std::string quoted = "'";
  for (const char c : word) {
    quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  }
  return quoted + "'";
}

std::string alternatives(const std::vector<std::string>& words) {
  std::string text;
  for (size_t i = 0; i < words.size(); ++i) {
    text += (i == 0 ? "`" : i + 1 == words.size() ? " or `" : ", `") + words[i] + "`";
  }
  return text;
}

std::string padded(const std::string& text, size_t width) {
  return text + std::string(width > text.size() ? width - text.size() : 1, ' ');
}

} // namespace mh
