#include "core/text/splitter.hpp"

#include "core/text/cursor.hpp"

#include <algorithm>
#include <cstring>
#include <string>

namespace mh::text {

const CategoryTable& Cursor::kTable = categories();

const std::array<Categories, 128> Cursor::kAscii = [] {
  std::array<Categories, 128> sets{};
  for (size_t code = 0; code < sets.size(); ++code) {
    sets[code] = set_of(categories()[static_cast<char32_t>(code)]);
  }
  return sets;
}();

namespace {

/// Length of 's, 't, 'm, 'd, 'll, 've, 're at `at`; 0 if there is none. If case does not matter,
/// U+017F is an s, too.
size_t contraction(const char* at, const char* end, bool any_case) {
  const size_t left = static_cast<size_t>(end - at);
  if (left < 2 || at[0] != '\'') {
    return 0;
  }
  const auto letter = [&](size_t i) {
    return any_case && at[i] >= 'A' && at[i] <= 'Z' ? static_cast<char>(at[i] + 32) : at[i];
  };
  const char first = letter(1);
  if (first == 's' || first == 't' || first == 'm' || first == 'd') {
    return 2;
  }
  if (left < 3) {
    return 0;
  }
  const char second = letter(2);
  if ((first == 'l' && second == 'l') || (second == 'e' && (first == 'v' || first == 'r'))) {
    return 3;
  }
  return any_case && std::memcmp(at + 1, "\xC5\xBF", 2) == 0 ? 3 : 0;
}

/// A family's rules. Order of the alternatives: contractions, letters, numbers, other characters,
/// white space.
struct SplitRules {
  bool contractions_first = true; ///< an alternative of its own
  bool contractions_last = false; ///< belong to the letters before them
  bool any_case = true;
  bool blank_before = false; ///< letters and numbers take a blank, else letters any other character
  bool cases = false;        ///< upper case, then lower case: a word ends where case rises
  Categories letters = kLetters;
  Categories others = ~(kSpaces | kLetters | kNumbers);
  int digits = 3; ///< digits of a number that stay together, at most; 0: all
  SpaceRule spaces = SpaceRule::lines;
  bool breaks_after_others = true; ///< line breaks belong to the other characters before them
  bool slash_after_others = false; ///< `/`, too
};

constexpr Categories kNotBefore = kLineBreaks | kLetters | kNumbers;
constexpr Categories kLowerWord =
    set_of(Category::Ll) | set_of(Category::Lm) | set_of(Category::Lo) | kMarks;
constexpr Categories kUpperWord = set_of(Category::Lu) | set_of(Category::Lt) |
                                  set_of(Category::Lm) | set_of(Category::Lo) | kMarks;

template <SplitRules kRules>
class FamilySplitter final : public Splitter {
public:
  [[nodiscard]] size_t
  ends(std::string_view text, size_t begin, std::span<size_t> ret_ends) const override {
    const char* const end = text.data() + text.size();
    const char* at = text.data() + begin;
    size_t count = 0;
    while (at != end && count < ret_ends.size()) {
      at = word_end(at, end);
      ret_ends[count++] = static_cast<size_t>(at - text.data());
    }
    return count;
  }

private:
  static const char* word_end(const char* begin, const char* end) {
    if constexpr (kRules.contractions_first) {
      if (const size_t length = contraction(begin, end, kRules.any_case)) {
        return begin + length;
      }
    }
    if constexpr (kRules.cases) {
      if (const char* found = cased_word_end(begin, end)) {
        return found;
      }
    }
    Cursor cursor(begin, end);
    const Categories first = cursor.here();
    if constexpr (!kRules.cases) {
      if ((first & kRules.letters) != 0) {
        cursor.skip(kRules.letters);
        return cursor.at();
      }
      if (kRules.blank_before ? *begin == ' ' : (first & kNotBefore) == 0) {
        cursor.step();
        if (cursor.in(kRules.letters)) {
          cursor.skip(kRules.letters);
          return cursor.at();
        }
      }
    }
    if (kRules.blank_before && *begin == ' ' && cursor.in(kNumbers)) {
      cursor.skip(kNumbers);
      return cursor.at();
    }
    cursor.move_to(begin);
    if ((first & kNumbers) != 0) {
      if constexpr (kRules.digits == 0) {
        cursor.skip(kNumbers);
      } else {
        cursor.skip(kNumbers, kRules.digits);
      }
      return cursor.at();
    }
    if (*begin == ' ') {
      cursor.step();
    }
    if (cursor.in(kRules.others)) {
      cursor.skip(kRules.others);
      if constexpr (kRules.slash_after_others) {
        while (cursor.in(kLineBreaks) || cursor.is('/')) {
          cursor.step();
        }
      } else if constexpr (kRules.breaks_after_others) {
        cursor.skip(kLineBreaks);
      }
      return cursor.at();
    }
    return spaces_end(Cursor(begin, end), kRules.spaces);
  }

  /// The end of `[^\r\n\p{L}\p{N}]?U*W+` or else of `[^\r\n\p{L}\p{N}]?U+W*`, with U the upper and
  /// W the lower case; null if neither is at `begin`.
  static const char* cased_word_end(const char* begin, const char* end) {
    Cursor cursor(begin, end);
    const bool letter_here = cursor.in(kUpperWord | kLowerWord);
    const char* after = nullptr; // the character before a word
    if (!cursor.in(kNotBefore)) {
      cursor.step();
      after = cursor.at();
    }
    const char* found = after != nullptr ? lower_end(after, end) : nullptr;
    if (found == nullptr && letter_here) {
      found = lower_end(begin, end);
    }
    if (found == nullptr && after != nullptr) {
      found = upper_end(after, end);
    }
    if (found == nullptr && letter_here) {
      found = upper_end(begin, end);
    }
    if constexpr (kRules.contractions_last) {
      return found == nullptr ? nullptr : found + contraction(found, end, kRules.any_case);
    }
    return found;
  }

  /// The end of U*W+: U* gives back as few characters as it can.
  static const char* lower_end(const char* begin, const char* end) {
    Cursor cursor(begin, end);
    const char* last = nullptr; // after the last character of U* that is one of W
    while (cursor.in(kUpperWord)) {
      const bool lower = cursor.in(kLowerWord);
      cursor.step();
      last = lower ? cursor.at() : last;
    }
    if (cursor.in(kLowerWord)) {
      cursor.skip(kLowerWord);
      return cursor.at();
    }
    return last;
  }

  /// The end of U+W* where no U*W+ is.
  static const char* upper_end(const char* begin, const char* end) {
    Cursor cursor(begin, end);
    cursor.skip(kUpperWord);
    return cursor.at() == begin ? nullptr : cursor.at();
  }
};

constexpr SplitRules kGpt2{
    .any_case = false,
    .blank_before = true,
    .digits = 0,
    .spaces = SpaceRule::any,
    .breaks_after_others = false};
constexpr SplitRules kLlama3{};
constexpr SplitRules kCl100k{.spaces = SpaceRule::lines_after_end};
constexpr SplitRules kQwen2{.digits = 1};
constexpr SplitRules kQwen3{
    .letters = kLetters | kMarks, .others = ~(kSpaces | kLetters | kMarks | kNumbers), .digits = 1};
constexpr SplitRules kO200k{
    .contractions_first = false,
    .contractions_last = true,
    .cases = true,
    .slash_after_others = true};
constexpr SplitRules kTekken{
    .contractions_first = false, .cases = true, .digits = 1, .slash_after_others = true};

template <SplitRules kRules>
std::unique_ptr<Splitter> make() {
  return std::make_unique<FamilySplitter<kRules>>();
}

struct Known {
  const char* name; // a model that has it; null for further ways to write the same pattern
  const char* pattern;
  std::unique_ptr<Splitter> (*make)();
};

#define MH_ANY_CASE "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define MH_UPPER R"([\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}])"
#define MH_LOWER R"([\p{Ll}\p{Lm}\p{Lo}\p{M}])"
#define MH_BEFORE R"([^\r\n\p{L}\p{N}]?)"
#define MH_LINES R"(|\s*[\r\n]+|\s+(?!\S)|\s+)"

/// The patterns as the files of models write them.
constexpr Known kKnown[] = {
    {nullptr,
     R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)",
     make<kGpt2>},
    {nullptr,
     R"('(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)",
     make<kGpt2>},
    {"gpt2",
     R"('(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s)",
     make<kGpt2>},
    {"llama3",
     MH_ANY_CASE "|" MH_BEFORE R"(\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*)" MH_LINES,
     make<kLlama3>},
    {nullptr,
     R"('(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+)",
     make<kLlama3>},
    {"cl100k",
     R"('(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|\s+(?!\S)|\s)",
     make<kCl100k>},
    {"qwen2",
     MH_ANY_CASE "|" MH_BEFORE R"(\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*)" MH_LINES,
     make<kQwen2>},
    {"qwen3_5",
     MH_ANY_CASE "|" MH_BEFORE R"([\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*)" MH_LINES,
     make<kQwen3>},
    {"o200k",
     MH_BEFORE MH_UPPER "*" MH_LOWER "+" MH_ANY_CASE "?|" MH_BEFORE MH_UPPER "+" MH_LOWER
                        "*" MH_ANY_CASE R"(?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*)" MH_LINES,
     make<kO200k>},
    {nullptr,
     MH_BEFORE MH_UPPER "*" MH_LOWER "+|" MH_BEFORE MH_UPPER "+" MH_LOWER
                        R"(*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*)" MH_LINES,
     make<kTekken>},
};

#undef MH_ANY_CASE
#undef MH_UPPER
#undef MH_LOWER
#undef MH_BEFORE
#undef MH_LINES

} // namespace

std::unique_ptr<Splitter> known_splitter(std::string_view pattern) {
  const auto* found = std::ranges::find(kKnown, pattern, &Known::pattern);
  return found == std::end(kKnown) ? nullptr : found->make();
}

std::string_view named_pattern(std::string_view name) {
  const auto* found = std::ranges::find_if(kKnown, [&](const Known& known) {
    return known.name != nullptr && known.name == name;
  });
  return found == std::end(kKnown) ? std::string_view() : found->pattern;
}

std::unique_ptr<Splitter> gpt2_splitter() {
  return make<kGpt2>();
}

} // namespace mh::text
