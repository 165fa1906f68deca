#include "xml.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <utility>

namespace s3 {

namespace {

constexpr std::array<std::pair<std::string_view, char>, 5> kEntities{
    {{"&amp;", '&'}, {"&lt;", '<'}, {"&gt;", '>'}, {"&quot;", '"'}, {"&apos;", '\''}}};

/// "&#13;" or "&#x0D;" as its character of one byte, and its length.
std::pair<char, size_t> numbered(std::string_view text) {
  const bool is_hex = text.substr(0, 3) == "&#x";
  const char* begin = text.data() + (is_hex ? 3 : 2);
  int code = 0;
  const auto [end, error] =
      std::from_chars(begin, text.data() + text.size(), code, is_hex ? 16 : 10);
  const bool whole = error == std::errc() && end != text.data() + text.size() && *end == ';';
  return whole && code > 0 && code < 128
             ? std::pair(static_cast<char>(code), static_cast<size_t>(end - text.data()) + 1)
             : std::pair('&', size_t{1});
}

} // namespace

std::vector<std::string> elements(std::string_view xml, std::string_view name) {
  const std::string start = "<" + std::string(name), end = "</" + std::string(name) + ">";
  std::vector<std::string> found;
  for (size_t at = 0; (at = xml.find(start, at)) != std::string_view::npos;) {
    const size_t after = at + start.size();
    const size_t begin = xml.find('>', after);
    const bool named = after < xml.size() &&
                       std::string_view("> \t\r\n/").find(xml[after]) != std::string_view::npos;
    at = after;
    if (!named || begin == std::string_view::npos) {
      continue;
    }
    if (xml[begin - 1] == '/') {
      found.emplace_back();
      continue;
    }
    const size_t stop = xml.find(end, begin);
    if (stop == std::string_view::npos) {
      break;
    }
    found.emplace_back(xml.substr(begin + 1, stop - begin - 1));
    at = stop;
  }
  return found;
}

std::string first_element(std::string_view xml, std::string_view name) {
  const std::string start = "<" + std::string(name);
  const size_t at = xml.find(start + ">");
  const size_t begin = at == std::string_view::npos ? xml.find(start + " ") : at;
  const size_t open = begin == std::string_view::npos ? begin : xml.find('>', begin);
  const size_t stop =
      open == std::string_view::npos ? open : xml.find("</" + std::string(name) + ">", open);
  return stop == std::string_view::npos ? "" : std::string(xml.substr(open + 1, stop - open - 1));
}

std::string unescaped(std::string_view text) {
  std::string plain;
  while (!text.empty()) {
    std::pair<char, size_t> next{text.front(), 1};
    if (text.starts_with("&#")) {
      next = numbered(text);
    } else if (text.front() == '&') {
      for (const auto& [entity, c] : kEntities) {
        if (text.starts_with(entity)) {
          next = {c, entity.size()};
        }
      }
    }
    plain += next.first;
    text.remove_prefix(next.second);
  }
  return plain;
}

std::string escaped(std::string_view text) {
  std::string coded;
  for (const char c : text) {
    const auto* entity = std::find_if(kEntities.begin(), kEntities.end(), [c](const auto& one) {
      return one.second == c;
    });
    coded += entity == kEntities.end() ? std::string(1, c) : std::string(entity->first);
  }
  return coded;
}

std::string host_of(std::string_view url) {
  const size_t begin = url.find("://");
  const std::string_view rest = begin == std::string_view::npos ? url : url.substr(begin + 3);
  return std::string(rest.substr(0, rest.find('/')));
}

} // namespace s3
