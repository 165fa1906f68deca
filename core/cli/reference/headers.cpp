#include "core/cli/reference/reference.hpp"

#include <algorithm>
#include <regex>

namespace mh {

namespace {

std::vector<std::string> lines_of(std::string_view text) {
  std::vector<std::string> lines;
  for (size_t start = 0; start < text.size();) {
    const size_t end = std::min(text.find('\n', start), text.size());
    lines.emplace_back(text.substr(start, end - start));
    start = end + 1;
  }
  return lines;
}

bool is_comment(const std::string& line) {
  return line.starts_with("///");
}

/// A documentation comment as Markdown: labels ("Shapes:  ...") become a list; what is fenced or
/// indented stays code.
std::string markdown(const std::vector<std::string>& comment) {
  static const std::regex label("(Shapes|Dtype|Units|Returns|Throws|Ranks|Thread|Source): +(.*)");
  std::string text;
  bool in_list = false, in_fence = false;
  for (const std::string& line : comment) {
    std::string words =
        line.substr(std::min<size_t>(line.size(), line.starts_with("/// ") ? 4 : 3));
    std::smatch match;
    if (const bool fence = words.starts_with("```"); fence || in_fence) {
      in_fence = in_fence != fence;
    } else if (std::regex_match(words, match, label)) {
      words = (in_list || text.empty() || text.ends_with("\n\n") ? "- **" : "\n- **") +
              match[1].str() + "**: " + match[2].str();
      in_list = true;
    } else if (words.empty()) {
      in_list = false;
    } else if (in_list) {
      words = "  " + words.substr(words.find_first_not_of(' '));
    } else if (words.starts_with("  ") && !words.starts_with("    ")) {
      words = "  " + words; // two columns by hand: code to Markdown
    }
    text += words + "\n";
  }
  return text;
}

/// The name that a declaration gives, for its heading.
std::string name_of(const std::string& code) {
  static const std::regex type("(?:^|\\n)(?:class|struct|enum class|union|enum)(?: MH_API)? (\\w+)"
  );
  static const std::regex alias("(?:^|\\n)using (\\w+) =");
  static const std::regex macro("^#define (\\w+)");
  static const std::regex constant("constexpr [^(]*?(\\w+) ?(?:=|\\{|;)");
  static const std::regex function("([~\\w]+|operator[^\\s(]+)\\(");
  std::smatch match;
  for (const std::regex* form : {&macro, &alias, &type, &constant}) {
    if (std::regex_search(code, match, *form)) {
      return match[1];
    }
  }
  for (std::sregex_iterator found(code.begin(), code.end(), function), end; found != end; ++found) {
    if ((*found)[1] != "decltype" && (*found)[1] != "noexcept") {
      return (*found)[1];
    }
  }
  return "";
}

/// Walks a header that clang-format has laid out: declarations of the namespace begin in the first
/// column and end in it.
class Header {
public:
  explicit Header(std::string_view text)
      : lines_(lines_of(text)) {}

  std::string read() {
    for (; at_ < lines_.size(); ++at_) {
      const std::string& line = lines_[at_];
      if (is_comment(line)) {
        comment_.push_back(line);
      } else if (line.empty() && !comment_.empty()) {
        take_comment();
      } else if (line.starts_with("namespace detail") || line.starts_with("namespace torch")) {
        skip_namespace();
      } else if (begins_declaration(line)) {
        declaration();
      }
    }
    return text_;
  }

private:
  [[nodiscard]] bool begins_declaration(const std::string& line) const {
    static const std::regex forward("(class|struct) \\w+;");
    if (line.starts_with("#define")) {
      return !comment_.empty();
    }
    return !line.empty() &&
           std::string_view(" #{}/").find(line.front()) == std::string_view::npos &&
           !line.starts_with("namespace") && !line.starts_with("extern \"C\" {") &&
           !std::regex_match(line, forward);
  }

  /// A comment with nothing below it: the file's own.
  void take_comment() {
    text_ += markdown(comment_) + "\n";
    comment_.clear();
  }

  void skip_namespace() {
    while (at_ < lines_.size() && !lines_[at_].starts_with("}")) {
      ++at_;
    }
    comment_.clear();
  }

  void declaration() {
    if (lines_[at_].starts_with("MH_INTERFACE") || lines_[at_].starts_with("static_assert")) {
      return;
    }
    std::string code;
    int depth = 0;
    bool is_private = false;
    for (; at_ < lines_.size(); ++at_) {
      const std::string& line = lines_[at_];
      if (line.starts_with("#")) { // a macro's first line says how it is called
        code = line.substr(0, line.find_last_not_of(" \\") + 1) + "\n";
        while (line.ends_with("\\") && lines_[at_].ends_with("\\")) {
          ++at_;
        }
        break;
      }
      depth += static_cast<int>(std::count(line.begin(), line.end(), '{')) -
               static_cast<int>(std::count(line.begin(), line.end(), '}'));
      is_private = depth > 0 && (is_private || line == "private:");
      if (!is_private) {
        code.resize(code.size() - (line == "};" && code.ends_with("\n\n") ? 1 : 0));
        code += line + "\n";
      }
      if (depth == 0 && (line.ends_with(";") || line.ends_with("}"))) {
        break;
      }
    }
    const std::string name = name_of(code);
    if (!name.empty()) {
      text_ += "## `" + name + "`\n\n" + (comment_.empty() ? "" : markdown(comment_) + "\n") +
               "```cpp\n" + without_body(code) + "```\n\n";
    }
    comment_.clear();
  }

  /// Functions' bodies are left out.
  static std::string without_body(const std::string& code) {
    static const std::regex holder("(^|\\n)(class|struct|union|enum|inline constexpr|#define)");
    const size_t body = code.find(" {\n");
    if (body == std::string::npos || std::regex_search(code, holder)) {
      return code;
    }
    return code.substr(0, body) + ";\n";
  }

  std::vector<std::string> lines_;
  std::vector<std::string> comment_;
  size_t at_ = 0;
  std::string text_;
};

} // namespace

std::string header_text(std::string_view header) {
  return Header(header).read();
}

} // namespace mh
