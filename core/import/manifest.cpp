#include "core/import/manifest.hpp"

#include "core/base/text.hpp"

#include <algorithm>
#include <sstream>
#include <string_view>
#include <vector>

namespace mh {

namespace {

/// The text without blanks around it.
std::string trimmed(const std::string& text) {
  const size_t begin = std::min(text.find_first_not_of(" \t\r"), text.size());
  return text.substr(begin, text.find_last_not_of(" \t\r") + 1 - begin);
}

/// A line without its indentation, which is a count of columns. A dash is two columns of it.
struct ManifestLine {
  size_t indent = 0;
  bool item = false; ///< it begins with a dash
  std::string text;
};

std::vector<ManifestLine> lines_of(const std::string& text) {
  std::vector<ManifestLine> lines;
  std::istringstream stream(text);
  for (std::string raw; std::getline(stream, raw);) {
    ManifestLine line;
    line.indent = std::min(raw.find_first_not_of(' '), raw.size());
    line.text = trimmed(raw);
    line.item = line.text == "-" || line.text.starts_with("- ");
    lines.push_back(std::move(line));
  }
  return lines;
}

/// The word in a text that begins where `at` is, which goes behind it. `ends`: what a plain one ends
/// at.
std::string scalar(const std::string& text, size_t& ret_at, const char* ends) {
  const char quote = text[ret_at];
  std::string word;
  if (quote != '"' && quote != '\'') {
    const size_t end =
        std::min({text.find_first_of(ends, ret_at), text.find(" #", ret_at), text.size()});
    word = trimmed(text.substr(ret_at, end - ret_at));
    ret_at = end;
    return word;
  }
  for (++ret_at; ret_at < text.size(); ++ret_at) {
    const char c = text[ret_at], next = ret_at + 1 < text.size() ? text[ret_at + 1] : '\0';
    if (c == quote && !(quote == '\'' && next == '\'')) {
      ++ret_at;
      break;
    }
    const bool escaped = c == quote || (quote == '"' && c == '\\');
    word += escaped ? (next == 'n' && c == '\\' ? '\n' : next) : c;
    ret_at += escaped ? 1 : 0;
  }
  return word;
}

class ManifestReader {
public:
  explicit ManifestReader(const std::string& text)
      : lines_(lines_of(text)) {}

  std::string script() {
    for (; at_ < lines_.size(); ++at_) {
      const std::string key = key_of(lines_[at_]);
      if (key == "command") {
        end_command();
        command_ = list();
      } else if (key == "args") {
        const auto more = list();
        command_.insert(command_.end(), more.begin(), more.end());
      } else if (key == "name") {
        name_ = value();
      } else if (key == "value" && !name_.empty()) {
        script_ += name_ + "=" + quoted(value()) + "\n";
        name_.clear();
      }
    }
    end_command();
    return script_;
  }

private:
  static std::string key_of(const ManifestLine& line) {
    const size_t begin = line.item ? std::min<size_t>(2, line.text.size()) : 0;
    const size_t colon = line.text.find(':', begin);
    return colon == std::string::npos ? "" : trimmed(line.text.substr(begin, colon - begin));
  }

  /// The text behind the key of the present line.
  [[nodiscard]] std::string behind() const {
    const std::string& text = lines_[at_].text;
    return trimmed(text.substr(text.find(':') + 1));
  }

  [[nodiscard]] std::string value() const {
    const std::string text = behind();
    size_t at = 0;
    return text.empty() ? "" : scalar(text, at, "");
  }

  /// The list that the key of the present line has, in the form [a, b] or of lines with dashes.
  std::vector<std::string> list() {
    std::vector<std::string> words;
    const size_t indent = lines_[at_].indent;
    std::string flow = behind();
    if (flow.starts_with('[')) {
      while (flow.find(']') == std::string::npos && at_ + 1 < lines_.size()) {
        flow += " " + lines_[++at_].text;
      }
      for (size_t i = 1; i < flow.size() && flow[i] != ']';) {
        if (flow[i] == ' ' || flow[i] == ',') {
          ++i;
        } else {
          words.push_back(scalar(flow, i, ",]"));
        }
      }
      return words;
    }
    const auto next_is_item = [&] {
      size_t next = at_ + 1;
      while (next < lines_.size() && (lines_[next].text.empty() || lines_[next].text[0] == '#')) {
        ++next;
      }
      const bool item = next < lines_.size() && lines_[next].item && lines_[next].indent >= indent;
      at_ = item ? next - 1 : at_;
      return item;
    };
    while (next_is_item()) {
      const ManifestLine& line = lines_[++at_];
      const std::string text = trimmed(line.text.substr(1));
      size_t begin = 0;
      const bool block = text.starts_with('|') || text.starts_with('>');
      words.push_back(
          block          ? block_of(line.indent, text[0] == '|' ? '\n' : ' ')
          : text.empty() ? ""
                         : scalar(text, begin, "")
      );
    }
    return words;
  }

  /// The lines below the present one that are indented further.
  std::string block_of(size_t indent, char between) {
    std::string text;
    while (at_ + 1 < lines_.size() &&
           (lines_[at_ + 1].indent > indent || lines_[at_ + 1].text.empty())) {
      text += lines_[++at_].text + between;
    }
    return text;
  }

  /// A word in the shell's double quotes, in which variables are variables.
  static std::string quoted(const std::string& word) {
    std::string text = "\"";
    for (size_t i = 0; i < word.size(); ++i) {
      const size_t close =
          word[i] == '$' && word.compare(i, 2, "$(") == 0 ? word.find(')', i) : std::string::npos;
      const bool name = close != std::string::npos && word.find(' ', i) > close;
      if (name) {
        text += "${" + word.substr(i + 2, close - i - 2) + "}";
        i = close;
      } else {
        text += (word[i] == '"' || word[i] == '\\' || word[i] == '`' ? "\\" : "") +
                std::string(1, word[i]);
      }
    }
    return text + "\"";
  }

  void end_command() {
    const size_t count = command_.size();
    if (count > 2 && command_[count - 2] == "-c") {
      script_ += command_.back() + "\n"; // what a shell is given to run
    } else if (count > 0) {
      std::vector<std::string> words;
      for (const std::string& word : command_) {
        words.push_back(quoted(word));
      }
      script_ += join(words, " ") + "\n";
    }
    command_.clear();
  }

  std::vector<ManifestLine> lines_;
  size_t at_ = 0;
  std::string script_, name_;
  std::vector<std::string> command_;
};

} // namespace

bool is_manifest(const std::string& file) {
  return file.ends_with(".yaml") || file.ends_with(".yml") || file.ends_with(".yaml-template");
}

std::string script_of_manifest(const std::string& text) {
  return ManifestReader(text).script();
}

} // namespace mh
