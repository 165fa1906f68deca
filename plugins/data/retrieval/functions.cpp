#include "functions.hpp"

#include <algorithm>
#include <cctype>
#include <cstddef>
#include <optional>
#include <utility>

namespace mh::retrieval {
namespace {

constexpr size_t kFewestLetters = 8; // letters of a comment that says something
constexpr size_t kMostLines = 60;    // lines of code
constexpr std::string_view kBlanks = " \t\r";

std::string_view trimmed(std::string_view line) {
  const size_t first = std::min(line.find_first_not_of(kBlanks), line.size());
  line.remove_prefix(first);
  return line.substr(0, line.find_last_not_of(kBlanks) + 1);
}

/// Without its mark, if the line is a comment of one line.
std::optional<std::string_view> line_comment(std::string_view line) {
  for (const std::string_view mark : {"///<", "///", "//!", "//"}) {
    if (line.starts_with(mark)) {
      return trimmed(line.substr(mark.size()));
    }
  }
  for (const std::string_view mark : {"#", "--"}) {
    if (line == mark || (line.starts_with(mark) && line[mark.size()] == ' ')) {
      return trimmed(line.substr(mark.size()));
    }
  }
  return std::nullopt;
}

void append(std::string& ret_text, std::string_view line) {
  bool blank = !ret_text.empty();
  for (const char letter : trimmed(line)) {
    if (kBlanks.find(letter) != std::string_view::npos) {
      blank = true;
      continue;
    }
    ret_text += blank ? " " : "";
    ret_text += letter;
    blank = false;
  }
}

class Reader {
public:
  explicit Reader(std::string_view text) {
    for (size_t begin = 0; begin < text.size();) {
      const size_t end = std::min(text.find('\n', begin), text.size());
      lines_.push_back(trimmed(text.substr(begin, end - begin)));
      begin = end + 1;
    }
  }

  std::vector<CommentedFunction> read() {
    std::vector<CommentedFunction> found;
    while (at_ < lines_.size()) {
      CommentedFunction one{comment(), {}};
      if (one.comment.empty()) {
        ++at_;
        continue;
      }
      one.code = code();
      const auto letters = static_cast<size_t>(std::ranges::count_if(one.comment, [](char letter) {
        return std::isalpha(static_cast<unsigned char>(letter)) != 0;
      }));
      if (letters >= kFewestLetters && !one.code.starts_with('#') &&
          one.code.find('(') != std::string::npos) {
        found.push_back(std::move(one));
      }
    }
    return found;
  }

private:
  /// The comment that begins here, and goes on over lines; the place is behind it.
  std::string comment() {
    std::string words;
    while (at_ < lines_.size()) {
      const std::string_view line = lines_[at_];
      if (const auto own = line_comment(line)) {
        append(words, *own);
        ++at_;
      } else if (line.starts_with("/*")) {
        block_comment(words);
      } else {
        break;
      }
    }
    return words;
  }

  void block_comment(std::string& ret_words) {
    for (bool first = true, ends = false; at_ < lines_.size() && !ends; ++at_, first = false) {
      std::string_view line = lines_[at_];
      line.remove_prefix(first ? 2 : 0);
      const size_t end = line.find("*/");
      ends = end != std::string_view::npos;
      line = trimmed(ends ? line.substr(0, end) : line);
      line.remove_prefix(std::min(line.find_first_not_of("*!"), line.size()));
      append(ret_words, line);
    }
  }

  std::string code() {
    std::string text;
    int depth = 0;
    for (size_t lines = 0; at_ < lines_.size() && lines < kMostLines; ++lines) {
      const std::string_view line = lines_[at_];
      if (line.empty() || (depth == 0 && (line_comment(line) || line.starts_with("/*")))) {
        break;
      }
      append(text, line);
      ++at_;
      for (const char letter : line) {
        depth += letter == '{' || letter == '(' ? 1 : letter == '}' || letter == ')' ? -1 : 0;
      }
      if (depth < 0 || (depth == 0 && (line.ends_with(';') || line.ends_with('}')))) {
        break;
      }
    }
    return text;
  }

  std::vector<std::string_view> lines_;
  size_t at_ = 0;
};

} // namespace

std::vector<CommentedFunction> commented_functions(std::string_view text) {
  return Reader(text).read();
}

} // namespace mh::retrieval
