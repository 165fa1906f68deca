#include "core/text/pattern_classes.hpp"

#include "core/base/text.hpp"
#include "core/text/unicode.hpp"
#include "core/text/utf8.hpp"
#include "megahost/error.hpp"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cstdio>
#include <vector>

namespace mh::text {

void refuse_pattern(const std::string& where, const std::string& why) {
  throw Error(
      where + ": " + why,
      "the file is damaged, or made for a program with other regular expressions",
      exit_code::data
  );
}

namespace {

struct NamedSet {
  std::string_view name;
  Categories set;
};

constexpr NamedSet kSets[] = {
    {"L", kLetters},
    {"Letter", kLetters},
    {"Lu", set_of(Category::Lu)},
    {"Ll", set_of(Category::Ll)},
    {"Lt", set_of(Category::Lt)},
    {"Lm", set_of(Category::Lm)},
    {"Lo", set_of(Category::Lo)},
    {"M", kMarks},
    {"Mark", kMarks},
    {"Mn", set_of(Category::Mn)},
    {"Mc", set_of(Category::Mc)},
    {"Me", set_of(Category::Me)},
    {"N", kNumbers},
    {"Number", kNumbers},
    {"Nd", set_of(Category::Nd)},
    {"Nl", set_of(Category::Nl)},
    {"No", set_of(Category::No)},
    {"P", kPunctuation},
    {"Punctuation", kPunctuation},
    {"Pc", set_of(Category::Pc)},
    {"Pd", set_of(Category::Pd)},
    {"Ps", set_of(Category::Ps)},
    {"Pe", set_of(Category::Pe)},
    {"Pi", set_of(Category::Pi)},
    {"Pf", set_of(Category::Pf)},
    {"Po", set_of(Category::Po)},
    {"S", kSymbols},
    {"Symbol", kSymbols},
    {"Sm", set_of(Category::Sm)},
    {"Sc", set_of(Category::Sc)},
    {"Sk", set_of(Category::Sk)},
    {"So", set_of(Category::So)},
    {"Z", set_of(Category::Zs, Category::Zp)},
    {"Zs", set_of(Category::Zs)},
    {"Zl", set_of(Category::Zl)},
    {"Zp", set_of(Category::Zp)},
    {"C", kControls | set_of(Category::Cc, Category::Cn)},
    {"Cc", kControls},
    {"Cf", set_of(Category::Cf)},
    {"Co", set_of(Category::Co)},
    {"Cn", set_of(Category::Cn)},
};

/// `\w`: letters, marks, digits, connectors.
constexpr Categories kWord =
    kLetters | kMarks | set_of(Category::Nd, Category::Nl) | set_of(Category::Pc);

/// "\x{41}-\x{5A}..." for a set of categories.
std::string ranges(Categories set) {
  std::string text;
  for (char32_t code = 0; code < kCodePoints;) {
    if (!categories().in(code, set)) {
      ++code;
      continue;
    }
    char32_t last = code;
    while (last + 1 < kCodePoints && categories().in(last + 1, set)) {
      ++last;
    }
    std::array<char, 40> range{};
    // Surrogates are no characters, and PCRE2 refuses ranges that end in them.
    const char32_t from = code >= 0xD800 && code < 0xE000 ? 0xE000 : code;
    const char32_t to = last >= 0xD800 && last < 0xE000 ? 0xD7FF : last;
    if (from <= to) {
      const int length = std::snprintf(
          range.data(), range.size(), "\\x{%X}-\\x{%X}", unsigned{from}, unsigned{to}
      );
      text.append(range.data(), static_cast<size_t>(length));
    }
    code = last + 1;
  }
  return text;
}

/// Rewrites an expression from left to right.
class Rewriter {
public:
  Rewriter(std::string_view expression, const std::string& where)
      : rest_(expression)
      , where_(where) {}

  std::string run() {
    while (!rest_.empty()) {
      if (rest_[0] == '\\') {
        escape();
      } else {
        if (rest_[0] == '[') {
          open_class();
          continue;
        }
        if (rest_[0] == ']') {
          in_class_ = false;
        }
        if (in_class_ && rest_.starts_with("&&")) {
          refuse_pattern(where_, "the regular expression has an intersection of classes (&&)");
        }
        take(1);
      }
    }
    return std::move(result_);
  }

private:
  void take(size_t count) {
    result_ += rest_.substr(0, count);
    rest_.remove_prefix(std::min(count, rest_.size()));
  }

  void open_class() {
    if (in_class_) {
      refuse_pattern(where_, "the regular expression has a class within a class");
    }
    in_class_ = true;
    take(rest_.starts_with("[^") ? 2 : 1);
    if (rest_.starts_with(']')) {
      take(1);
    }
  }

  void put(Categories set, bool inverted) {
    result_ += in_class_ ? "" : "[";
    result_ += ranges(inverted ? ~set : set);
    result_ += in_class_ ? "" : "]";
  }

  void escape() {
    const char letter = rest_.size() > 1 ? rest_[1] : '\0';
    switch (letter) {
    case 'p':
    case 'P':
      property(letter == 'P');
      return;
    case 's':
    case 'S':
      plain(kSpaces, letter == 'S');
      return;
    case 'd':
    case 'D':
      plain(set_of(Category::Nd), letter == 'D');
      return;
    case 'w':
    case 'W':
      plain(kWord, letter == 'W');
      return;
    case 'u': // four digits
      if (rest_.size() < 6) {
        break;
      }
      result_ += "\\x{" + std::string(rest_.substr(2, 4)) + "}";
      rest_.remove_prefix(6);
      return;
    case 'r':
    case 'n':
    case 't':
    case 'f':
    case 'x':
    case 'A':
    case 'z':
      take(2);
      return;
    default:
      if (letter != '\0' && std::isalnum(static_cast<unsigned char>(letter)) == 0) {
        take(2);
        return;
      }
    }
    refuse_pattern(where_, "the escape " + string_text(rest_.substr(0, 2)) + " is not known");
  }

  void plain(Categories set, bool inverted) {
    put(set, inverted);
    rest_.remove_prefix(2);
  }

  void property(bool inverted) {
    std::string_view name;
    size_t length = 0;
    if (rest_.size() > 3 && rest_[2] == '{') {
      length = rest_.find('}');
      name = length == std::string_view::npos ? "" : rest_.substr(3, length - 3);
      ++length;
    } else {
      name = rest_.substr(2, 1);
      length = 3;
    }
    if (name.starts_with('^')) {
      inverted = !inverted;
      name.remove_prefix(1);
    }
    const auto* found = std::ranges::find(kSets, name, &NamedSet::name);
    if (found == std::end(kSets)) {
      refuse_pattern(
          where_, "the class " + string_text(name.substr(0, 40)) + " of characters is not known"
      );
    }
    put(found->set, inverted);
    rest_.remove_prefix(length);
  }

  std::string_view rest_;
  const std::string& where_;
  std::string result_;
  bool in_class_ = false;
};

} // namespace

std::string with_ranges(std::string_view expression, const std::string& where) {
  return Rewriter(expression, where).run();
}

} // namespace mh::text
