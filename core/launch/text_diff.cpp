#include "core/launch/write.hpp"

#include <algorithm>
#include <string_view>

namespace mh {

namespace {

std::vector<std::string_view> lines_of(std::string_view text) {
  std::vector<std::string_view> lines;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    lines.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  return lines;
}

/// A line of both texts (' '), or of one ('-', '+'), and how many of each came before it.
struct Line {
  char side;
  std::string_view text;
  size_t before, after;
};

/// By the longest common subsequence: files of jobs have some hundred lines.
std::vector<Line>
compared(const std::vector<std::string_view>& a, const std::vector<std::string_view>& b) {
  std::vector<std::vector<uint32_t>> common(a.size() + 1, std::vector<uint32_t>(b.size() + 1));
  for (size_t i = a.size(); i-- > 0;) {
    for (size_t j = b.size(); j-- > 0;) {
      common[i][j] =
          a[i] == b[j] ? common[i + 1][j + 1] + 1 : std::max(common[i + 1][j], common[i][j + 1]);
    }
  }
  std::vector<Line> lines;
  for (size_t i = 0, j = 0; i < a.size() || j < b.size();) {
    if (i < a.size() && j < b.size() && a[i] == b[j]) {
      lines.push_back({' ', a[i], i, j});
      ++i, ++j;
    } else if (j == b.size() || (i < a.size() && common[i + 1][j] >= common[i][j + 1])) {
      lines.push_back({'-', a[i], i, j});
      ++i;
    } else {
      lines.push_back({'+', b[j], i, j});
      ++j;
    }
  }
  return lines;
}

/// "12,3": where a hunk begins, from 1, and how long it is; an empty one is behind line 12.
std::string range(size_t first, size_t count) {
  return std::to_string(count == 0 ? first : first + 1) + "," + std::to_string(count);
}

} // namespace

std::string
text_diff(const std::string& before, const std::string& after, const std::string& name) {
  constexpr size_t kAround = 3;
  const auto a = lines_of(before), b = lines_of(after);
  const std::vector<Line> lines = compared(a, b);
  std::string text;
  for (size_t at = 0; at < lines.size();) {
    const auto changed = [](const Line& line) { return line.side != ' '; };
    const auto begin = lines.begin() + static_cast<std::ptrdiff_t>(at);
    const auto first =
        static_cast<size_t>(std::find_if(begin, lines.end(), changed) - lines.begin());
    if (first == lines.size()) {
      break;
    }
    size_t last = first; // last change of the hunk; the next one is too far to share context
    for (size_t i = first; i < lines.size() && i <= last + 2 * kAround + 1; ++i) {
      last = changed(lines[i]) ? i : last;
    }
    const size_t from = first - std::min(kAround, first - at);
    const size_t to = std::min(last + kAround + 1, lines.size());
    std::string hunk;
    size_t removed = 0, added = 0;
    for (size_t i = from; i < to; ++i) {
      removed += lines[i].side != '+' ? 1 : 0;
      added += lines[i].side != '-' ? 1 : 0;
      hunk += lines[i].side + std::string(lines[i].text) + "\n";
    }
    text += "@@ -" + range(lines[from].before, removed) + " +" + range(lines[from].after, added) +
            " @@\n" + hunk;
    at = to;
  }
  return text.empty() ? "" : "--- " + name + "\n+++ " + name + " (now)\n" + text;
}

} // namespace mh
