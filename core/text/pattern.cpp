#include "core/text/pattern.hpp"

#include "core/base/text.hpp"
#include "megahost/error.hpp"

#include <algorithm>
#include <array>
#include <cstdio>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

namespace mh::text {

namespace {

[[noreturn]] void refuse(const std::string& where, const std::string& why) {
  throw Error(
      where + ": " + why,
      "the file is damaged, or made for a program with other regular expressions",
      exit_code::data
  );
}

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
          refuse(where_, "the regular expression has an intersection of classes (&&)");
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
      refuse(where_, "the regular expression has a class within a class");
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
    refuse(where_, "the escape " + string_text(rest_.substr(0, 2)) + " is not known");
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
      refuse(
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

/// The expression with `\p{..}`, `\s`, `\d`, `\w` and their opposites as ranges of code points.
std::string with_ranges(std::string_view expression, const std::string& where) {
  return Rewriter(expression, where).run();
}

} // namespace

struct Pattern::Code {
  struct Free {
    void operator()(pcre2_code* code) const { pcre2_code_free(code); }
  };

  std::unique_ptr<pcre2_code, Free> code;
  bool compiled = false; // to machine code
  std::string where;
};

Pattern::Pattern(std::string_view expression, Dialect dialect, const std::string& where)
    : code_(std::make_unique<Code>()) {
  constexpr size_t kLongest = 1 << 16;
  if (expression.size() > kLongest) {
    refuse(where, "a regular expression of more than 65536 bytes");
  }
  const std::string rewritten = with_ranges(expression, where);
  int error = 0;
  PCRE2_SIZE at = 0;
  const uint32_t options =
      PCRE2_UTF | (dialect == Dialect::oniguruma ? PCRE2_MULTILINE : PCRE2_DOLLAR_ENDONLY);
  const std::unique_ptr<pcre2_compile_context, decltype(&pcre2_compile_context_free)> context(
      pcre2_compile_context_create(nullptr), &pcre2_compile_context_free
  );
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF); // a library may be built with another default
  code_->where = where;
  code_->code.reset(pcre2_compile(
      reinterpret_cast<PCRE2_SPTR>(rewritten.data()),
      rewritten.size(),
      options,
      &error,
      &at,
      context.get()
  ));
  if (code_->code == nullptr) {
    std::array<unsigned char, 200> message{};
    pcre2_get_error_message(error, message.data(), message.size());
    refuse(
        where,
        "the regular expression " + string_text(expression.substr(0, 60)) +
            " is wrong: " + reinterpret_cast<const char*>(message.data())
    );
  }
  code_->compiled = pcre2_jit_compile(code_->code.get(), PCRE2_JIT_COMPLETE) == 0;
}

Pattern::~Pattern() = default;

std::optional<std::pair<size_t, size_t>> Pattern::find(std::string_view text, size_t from) const {
  struct Free {
    void operator()(pcre2_match_data* data) const { pcre2_match_data_free(data); }
  };

  const std::unique_ptr<pcre2_match_data, Free> data(pcre2_match_data_create(1, nullptr));
  const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  const uint32_t options = PCRE2_NO_UTF_CHECK | PCRE2_NOTEMPTY;
  int found =
      pcre2_match(code_->code.get(), subject, text.size(), from, options, data.get(), nullptr);
  if (found == PCRE2_ERROR_JIT_STACKLIMIT) {
    found = pcre2_match(
        code_->code.get(), subject, text.size(), from, options | PCRE2_NO_JIT, data.get(), nullptr
    );
  }
  if (found == PCRE2_ERROR_NOMATCH) {
    return std::nullopt;
  }
  if (found < 0) {
    throw Error(
        code_->where + ": the regular expression gave up on a text of " +
            std::to_string(text.size()) + " bytes (PCRE2 says " + std::to_string(found) + ")",
        "cut the text into shorter documents",
        exit_code::data
    );
  }
  const PCRE2_SIZE* place = pcre2_get_ovector_pointer(data.get());
  return std::pair<size_t, size_t>(place[0], place[1]);
}

namespace {

class PatternSplitter final : public Splitter {
public:
  explicit PatternSplitter(std::shared_ptr<const Pattern> pattern)
      : pattern_(std::move(pattern)) {}

  [[nodiscard]] size_t
  ends(std::string_view text, size_t begin, std::span<size_t> ret_ends) const override {
    size_t count = 0;
    while (begin < text.size() && count < ret_ends.size()) {
      const auto [from, to] =
          pattern_->find(text, begin).value_or(std::pair(text.size(), text.size()));
      if (from > begin) {
        ret_ends[count++] = from;
      }
      if (to > from && count < ret_ends.size()) {
        ret_ends[count++] = to;
        begin = to;
      } else {
        begin = from; // a match that had no room is found again
      }
    }
    return count;
  }

private:
  std::shared_ptr<const Pattern> pattern_;
};

} // namespace

std::unique_ptr<Splitter> pattern_splitter(std::shared_ptr<const Pattern> pattern) {
  return std::make_unique<PatternSplitter>(std::move(pattern));
}

} // namespace mh::text
