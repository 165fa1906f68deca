#include "core/text/pattern_classes.hpp"

#include "core/base/text.hpp"
#include "core/text/unicode.hpp"
#include "core/text/unicode_data.hpp"
#include "core/text/utf8.hpp"
#include "megahost/error.hpp"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cstdio>
#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace mh::text {

void refuse_pattern(const std::string& where, const std::string& why) {
  throw Error(
      where + ": " + why,
      "categories (\\p{Lu}), scripts (\\p{Greek}), \\s, \\d, \\w and \\b are known; else the file is "
      "damaged, or made for a program with other regular expressions",
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

/// Most of `\w`: letters, marks, digits, connectors.
constexpr Categories kWord =
    kLetters | kMarks | set_of(Category::Nd, Category::Nl) | set_of(Category::Pc);

using Range = std::pair<char32_t, char32_t>;

/// Letters within circles and squares, which are alphabetic.
///
/// Source:  Unicode 16.0, PropList.txt, Other_Alphabetic, of the category So
constexpr Range kEnclosed[] = {
    {0x24B6, 0x24E9}, {0x1F130, 0x1F149}, {0x1F150, 0x1F169}, {0x1F170, 0x1F189}};

/// Numbers of Latin-1 that are part of words in Oniguruma alone, and the joiners, in Rust alone.
constexpr Range kRaised[] = {{0xB2, 0xB3}, {0xB9, 0xB9}, {0xBC, 0xBE}};
constexpr Range kJoiners[] = {{0x200C, 0x200D}};

/// The place of a script in the tables, by a name of any case with or without blanks and lines.
std::optional<uint32_t> find_script(std::string_view name) {
  for (const std::string_view property : {"Script=", "sc="}) {
    name.remove_prefix(name.starts_with(property) ? property.size() : 0);
  }
  std::string plain;
  for (const char c : name) {
    plain +=
        c == ' ' || c == '_' || c == '-' ? "" : std::string(1, c >= 'a' && c <= 'z' ? c - 32 : c);
  }
  for (uint32_t script = 0; script < data::kScriptNamesSize; ++script) {
    const std::string names = std::string(" ") + data::kScriptNames[script] + " ";
    if (!plain.empty() && names.find(" " + plain + " ") != std::string::npos) {
      return script;
    }
  }
  return std::nullopt;
}

/// A set of code points.
class CodeSet {
public:
  CodeSet()
      : has_(kCodePoints) {}

  explicit CodeSet(Categories set)
      : CodeSet() {
    for (char32_t code = 0; code < kCodePoints; ++code) {
      has_[code] = categories().in(code, set);
    }
  }

  void add(char32_t first, char32_t last) {
    std::fill(has_.begin() + first, has_.begin() + last + 1, true);
  }

  void add(std::span<const Range> ranges) {
    for (const auto& [first, last] : ranges) {
      add(first, last);
    }
  }

  void add_script(uint32_t script) {
    for (size_t i = 0; i < data::kScriptsSize; ++i) {
      if ((data::kScripts[i] & 0xFF) == script) {
        const char32_t end = i + 1 < data::kScriptsSize ? data::kScripts[i + 1] >> 8 : kCodePoints;
        add(data::kScripts[i] >> 8, end - 1);
      }
    }
  }

  void add(const CodeSet& other) {
    for (size_t code = 0; code < has_.size(); ++code) {
      has_[code] = has_[code] || other.has_[code];
    }
  }

  void keep(const CodeSet& other) {
    for (size_t code = 0; code < has_.size(); ++code) {
      has_[code] = has_[code] && other.has_[code];
    }
  }

  void invert() { has_.flip(); }

  /// "\x{41}-\x{5A}...".
  [[nodiscard]] std::string ranges() const {
    std::string text;
    for (char32_t code = 0; code < kCodePoints;) {
      if (!has_[code]) {
        ++code;
        continue;
      }
      char32_t last = code;
      while (last + 1 < kCodePoints && has_[last + 1]) {
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

private:
  std::vector<bool> has_;
};

/// Rewrites an expression from left to right.
class Rewriter {
public:
  Rewriter(std::string_view expression, Dialect dialect, const std::string& where)
      : rest_(expression)
      , dialect_(dialect)
      , where_(where) {}

  std::string run() {
    while (!rest_.empty()) {
      if (rest_[0] == '[' && !in_class_) {
        open_class();
      } else if (rest_[0] == '\\') {
        escape();
      } else if (!in_class_ && rest_.starts_with("{,")) {
        most();
      } else if (!in_class_ && rest_.starts_with("(?")) {
        flags();
      } else {
        if (in_class_ && dialect_ == Dialect::rust) {
          refuse_difference();
        }
        in_class_ = in_class_ && rest_[0] != ']';
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

  [[noreturn]] void refuse(const std::string& why) const { refuse_pattern(where_, why); }

  /// "{,3}" is "{0,3}"; anything else stays.
  void most() {
    const size_t end = rest_.find_first_not_of("0123456789", 2);
    const bool bound = end != std::string_view::npos && end > 2 && rest_[end] == '}';
    result_ += bound ? "{0" : "{";
    rest_.remove_prefix(1);
  }

  /// "(?im-x" with Oniguruma's m as PCRE2's s.
  void flags() {
    take(2);
    const size_t end = rest_.find_first_not_of("imsx-");
    if (end == std::string_view::npos || (rest_[end] != ')' && rest_[end] != ':')) {
      return;
    }
    std::string letters(rest_.substr(0, end));
    if (dialect_ == Dialect::oniguruma) {
      std::ranges::replace(letters, 'm', 's');
    }
    result_ += letters;
    rest_.remove_prefix(end);
  }

  void refuse_difference() const {
    if (rest_.starts_with("--") || rest_.starts_with("~~")) {
      refuse("a difference of classes (" + std::string(rest_.substr(0, 2)) + ") is not known");
    }
  }

  /// Whether the class that begins here has others in it, or intersections.
  [[nodiscard]] bool is_nested() const {
    size_t at = rest_.starts_with("[^") ? 2 : 1;
    for (at += rest_.substr(at).starts_with(']') ? 1 : 0; at < rest_.size(); ++at) {
      if (rest_[at] == '\\') {
        ++at;
      } else if (rest_[at] == '[' || rest_.substr(at).starts_with("&&")) {
        return true;
      } else if (rest_[at] == ']') {
        return false;
      }
    }
    return false;
  }

  void open_class() {
    if (is_nested()) { // PCRE2 has none
      const std::string ranges = read_class().ranges();
      result_ += ranges.empty() ? "(?!)" : "[" + ranges + "]";
      return;
    }
    in_class_ = true;
    take(rest_.starts_with("[^") ? 2 : 1);
    if (rest_.starts_with(']')) {
      take(1);
    }
  }

  /// A class, and those in it.
  CodeSet read_class(int depth = 0) {
    constexpr int kDeepest = 16;
    if (depth == kDeepest) {
      refuse("classes within classes, more than 16 deep");
    }
    const bool inverted = rest_.starts_with("[^");
    rest_.remove_prefix(inverted ? 2 : 1);
    CodeSet all, part;
    all.invert();
    for (bool first = true; first || !rest_.starts_with(']'); first = false) {
      if (rest_.empty()) {
        refuse("the regular expression has a class without an end");
      }
      if (rest_.starts_with("[:")) {
        refuse("the class " + string_text(rest_.substr(0, rest_.find(']') + 1)) + " is not known");
      }
      if (dialect_ == Dialect::rust) {
        refuse_difference();
      }
      if (rest_.starts_with("&&")) {
        rest_.remove_prefix(2);
        all.keep(part);
        part = CodeSet();
      } else if (rest_[0] == '[') {
        part.add(read_class(depth + 1));
      } else if (const auto set = read_set()) {
        part.add(*set);
      } else {
        const char32_t from = read_character();
        const bool range = rest_.size() > 1 && rest_[0] == '-' && rest_[1] != ']';
        rest_.remove_prefix(range ? 1 : 0);
        const char32_t to = range ? read_character() : from;
        if (to < from) {
          refuse("the regular expression has a range of characters that ends before it begins");
        }
        part.add(from, to);
      }
    }
    rest_.remove_prefix(1);
    all.keep(part);
    if (inverted) {
      all.invert();
    }
    return all;
  }

  /// The character of a class that stands here.
  char32_t read_character() {
    if (rest_[0] != '\\') {
      return take_character();
    }
    const char letter = rest_.size() > 1 ? rest_[1] : '\0';
    constexpr std::string_view kNames = "rntfv", kNamed = "\r\n\t\f\v";
    if (const size_t at = kNames.find(letter); letter != '\0' && at != std::string_view::npos) {
      rest_.remove_prefix(2);
      return static_cast<char32_t>(kNamed[at]);
    }
    if (letter == 'x' || letter == 'u') {
      return read_number(letter == 'u' ? 4 : 2);
    }
    if (letter == '\0' || std::isalnum(static_cast<unsigned char>(letter)) != 0) {
      refuse("the escape " + string_text(rest_.substr(0, 2)) + " is not known");
    }
    rest_.remove_prefix(1);
    return take_character();
  }

  char32_t take_character() {
    const Character character = decode_at(rest_.data());
    rest_.remove_prefix(character.length);
    return character.code;
  }

  /// `\x41`, `\x{1F600}`, `\u3000`.
  char32_t read_number(size_t digits) {
    const bool braces = rest_.substr(2).starts_with('{');
    const size_t begin = braces ? 3 : 2;
    const size_t end = braces ? rest_.find('}') : begin + digits;
    uint32_t code = 0;
    if (end == std::string_view::npos || end > rest_.size() || end == begin ||
        std::from_chars(rest_.data() + begin, rest_.data() + end, code, 16).ptr !=
            rest_.data() + end ||
        code >= kCodePoints) {
      refuse("the escape " + string_text(rest_.substr(0, 12)) + " is not known");
    }
    rest_.remove_prefix(end + (braces ? 1 : 0));
    return code;
  }

  void escape() {
    if (const auto set = read_set()) {
      const std::string ranges = set->ranges();
      const bool folds = in_class_ || dialect_ == Dialect::rust; // not alone in Oniguruma's (?i)
      result_ += in_class_ ? ranges : (folds ? "[" : "(?-i:[") + ranges + (folds ? "]" : "])");
      return;
    }
    const char letter = rest_.size() > 1 ? rest_[1] : '\0';
    if ((letter == 'b' || letter == 'B') && !in_class_) {
      const std::string inside = "[" + word(false).ranges() + "]"; // it skips the escape
      const bool boundary = letter == 'b';
      result_ += "(?:(?<=" + inside + ")(?" + (boundary ? "!" : "=") + inside + ")|(?<!" + inside +
                 ")(?" + (boundary ? "=" : "!") + inside + "))";
      return;
    }
    if (letter == 'u' && rest_.size() >= 6) { // four digits
      result_ += "\\x{" + std::string(rest_.substr(2, 4)) + "}";
      rest_.remove_prefix(6);
      return;
    }
    constexpr std::string_view kSame = "rntfxAz"; // in PCRE2, too
    if (letter == '\0' || (std::isalnum(static_cast<unsigned char>(letter)) != 0 &&
                           kSame.find(letter) == std::string_view::npos)) {
      refuse("the escape " + string_text(rest_.substr(0, 2)) + " is not known");
    }
    take(2);
  }

  /// `\s`, `\d`, `\w`, `\p{..}` and their opposites; none if something else stands here.
  std::optional<CodeSet> read_set() {
    const char letter = rest_[0] == '\\' && rest_.size() > 1 ? rest_[1] : '\0';
    switch (letter) {
    case 'p':
    case 'P':
      return read_property(letter == 'P');
    case 's':
    case 'S':
      return plain(kSpaces, letter == 'S');
    case 'd':
    case 'D':
      return plain(set_of(Category::Nd), letter == 'D');
    case 'w':
    case 'W':
      return word(letter == 'W');
    default:
      return std::nullopt;
    }
  }

  CodeSet plain(Categories set, bool inverted) {
    rest_.remove_prefix(2);
    return CodeSet(inverted ? ~set : set);
  }

  CodeSet word(bool inverted) {
    rest_.remove_prefix(2);
    CodeSet set(kWord);
    set.add(kEnclosed);
    set.add(dialect_ == Dialect::oniguruma ? std::span<const Range>(kRaised) : kJoiners);
    if (inverted) {
      set.invert();
    }
    return set;
  }

  CodeSet read_property(bool inverted) {
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
    CodeSet set;
    const auto* found = std::ranges::find(kSets, name, &NamedSet::name);
    if (found != std::end(kSets)) {
      set = CodeSet(found->set);
    } else if (const auto script = find_script(name)) {
      set.add_script(*script);
    } else {
      refuse("the class " + string_text(name.substr(0, 40)) + " of characters is not known");
    }
    if (inverted) {
      set.invert();
    }
    rest_.remove_prefix(length);
    return set;
  }

  std::string_view rest_;
  Dialect dialect_;
  const std::string& where_;
  std::string result_;
  bool in_class_ = false;
};

} // namespace

std::string with_ranges(std::string_view expression, Dialect dialect, const std::string& where) {
  if (valid_prefix(expression) < expression.size()) {
    refuse_pattern(where, "the regular expression is no UTF-8");
  }
  return Rewriter(expression, dialect, where).run();
}

} // namespace mh::text
