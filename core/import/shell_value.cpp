#include "core/import/shell_value.hpp"

#include <cctype>
#include <charconv>
#include <limits>
#include <utility>

namespace mh::shell {

namespace {

constexpr int64_t kLargest = int64_t{1} << 52;
constexpr int kDeepestValue = 64;

std::optional<int64_t> integer(const std::string& text) {
  int64_t number = 0;
  const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), number);
  const bool whole = failure == std::errc() && end == text.data() + text.size() && !text.empty();
  return whole ? std::optional(number) : std::nullopt;
}

/// expression = term {(+|-) term}; term = factor {(*|/|%) factor}; factor = [-] number | ( ... )
class Arithmetic {
public:
  explicit Arithmetic(const std::string& text)
      : text_(text) {}

  std::optional<int64_t> run() {
    const auto value = sum(0);
    skip();
    return at_ == text_.size() ? value : std::nullopt;
  }

private:
  void skip() {
    while (at_ < text_.size() && std::isspace(static_cast<unsigned char>(text_[at_])) != 0) {
      ++at_;
    }
  }

  /// The next sign if it is one of `signs`.
  char sign(const char* signs) {
    skip();
    if (at_ < text_.size() && std::string(signs).find(text_[at_]) != std::string::npos) {
      return text_[at_++];
    }
    return '\0';
  }

  static std::optional<int64_t> bounded(double value) {
    return value > -static_cast<double>(kLargest) && value < static_cast<double>(kLargest)
               ? std::optional(static_cast<int64_t>(value))
               : std::nullopt;
  }

  std::optional<int64_t> sum(int depth) {
    auto left = product(depth);
    while (left) {
      const char operation = sign("+-");
      if (operation == '\0') {
        break;
      }
      const auto right = product(depth);
      left = !right
                 ? std::nullopt
                 : bounded(static_cast<double>(operation == '+' ? *left + *right : *left - *right));
    }
    return left;
  }

  std::optional<int64_t> product(int depth) {
    auto left = factor(depth);
    while (left) {
      const char operation = sign("*/%");
      if (operation == '\0') {
        break;
      }
      const auto right = factor(depth);
      if (!right || (operation != '*' && *right == 0)) {
        return std::nullopt;
      }
      left = operation == '*' ? bounded(static_cast<double>(*left) * static_cast<double>(*right))
                              : std::optional(operation == '/' ? *left / *right : *left % *right);
    }
    return left;
  }

  std::optional<int64_t> factor(int depth) {
    if (depth > kDeepestValue) {
      return std::nullopt;
    }
    if (sign("-") != '\0') {
      const auto value = factor(depth + 1);
      return value ? std::optional(-*value) : std::nullopt;
    }
    if (sign("(") != '\0') {
      const auto value = sum(depth + 1);
      return sign(")") != '\0' ? value : std::nullopt;
    }
    skip();
    const size_t begin = at_;
    while (at_ < text_.size() && std::isdigit(static_cast<unsigned char>(text_[at_])) != 0) {
      ++at_;
    }
    const auto value = integer(text_.substr(begin, at_ - begin));
    return value && *value < kLargest ? value : std::nullopt;
  }

  const std::string& text_;
  size_t at_ = 0;
};

std::optional<bool> compare(const Word& a, const std::string& how, const Word& b) {
  if (how == "=" || how == "==") {
    return a.text == b.text;
  }
  if (how == "!=") {
    return a.text != b.text;
  }
  const auto left = integer(a.text), right = integer(b.text);
  if (!left || !right) {
    return std::nullopt;
  }
  return how == "-eq"   ? std::optional(*left == *right)
         : how == "-ne" ? std::optional(*left != *right)
         : how == "-lt" ? std::optional(*left < *right)
         : how == "-le" ? std::optional(*left <= *right)
         : how == "-gt" ? std::optional(*left > *right)
         : how == "-ge" ? std::optional(*left >= *right)
                        : std::nullopt;
}

} // namespace

void Word::append(const Word& piece) {
  text += piece.text;
  if (!piece.unknown.empty()) {
    unset = piece.unset && (unknown.empty() || unset);
    unknown = unknown.empty() ? piece.unknown : unknown;
  }
}

void set_command_line(Variables& ret_variables, ShellWords words) {
  const auto is_word = [](const auto& variable) {
    return std::isdigit(static_cast<unsigned char>(variable.first.front())) != 0 &&
           variable.first != "0";
  };
  std::erase_if(ret_variables, is_word);
  for (size_t i = 0; i < words.size(); ++i) {
    ret_variables[std::to_string(i + 1)] = {words[i]};
  }
  ret_variables["#"] = {{std::to_string(words.size())}};
  ret_variables["*"] = words;
  ret_variables["@"] = std::move(words);
}

std::optional<int64_t> arithmetic(const std::string& expression) {
  return Arithmetic(expression).run();
}

std::optional<bool> test_of(const ShellWords& words) {
  const std::string& name = words.empty() ? std::string() : words.front().text;
  const bool brackets = name == "[" || name == "[[";
  if (!brackets && name != "test") {
    return std::nullopt;
  }
  ShellWords inside(words.begin() + 1, words.end() - (brackets && words.size() > 1 ? 1 : 0));
  bool negated = false;
  while (!inside.empty() && inside.front().text == "!") {
    negated = !negated;
    inside.erase(inside.begin());
  }
  for (const Word& word : inside) {
    if (!word.unknown.empty() && !word.unset) {
      return std::nullopt;
    }
  }
  std::optional<bool> result;
  if (inside.size() == 1) {
    result = !inside[0].text.empty();
  } else if (inside.size() == 2 && (inside[0].text == "-z" || inside[0].text == "-n")) {
    result = inside[1].text.empty() == (inside[0].text == "-z");
  } else if (inside.size() == 3) {
    result = compare(inside[0], inside[1].text, inside[2]);
  }
  return result ? std::optional(*result != negated) : std::nullopt;
}

} // namespace mh::shell
