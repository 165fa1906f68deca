#pragma once
/// Properties of Unicode 16.0's characters, whatever the machine's libraries know.

#include <array>
#include <cstdint>
#include <memory>
#include <string>

namespace mh::text {

/// The general category; the control characters that are white space have categories of their own.
// clang-format off
enum class Category : uint8_t {
  Lu, Ll, Lt, Lm, Lo, Mn, Mc, Me, Nd, Nl, No, Pc, Pd, Ps, Pe, Pi, Pf, Po, Sm, Sc, Sk, So, Zs, Zl, Zp,
  Cc, Cf, Cs, Co, Cn,
  control_space, ///< U+0009, U+000B, U+000C, U+0085
  line_break     ///< U+000A, U+000D
};
// clang-format on

/// A set of categories.
using Categories = uint32_t;

[[nodiscard]] constexpr Categories set_of(Category category) {
  return Categories{1} << static_cast<unsigned>(category);
}

/// All categories from one to another.
[[nodiscard]] constexpr Categories set_of(Category first, Category last) {
  return (set_of(last) << 1) - set_of(first);
}

inline constexpr Categories kLetters = set_of(Category::Lu, Category::Lo);
inline constexpr Categories kMarks = set_of(Category::Mn, Category::Me);
inline constexpr Categories kNumbers = set_of(Category::Nd, Category::No);
inline constexpr Categories kPunctuation = set_of(Category::Pc, Category::Po);
inline constexpr Categories kSymbols = set_of(Category::Sm, Category::So);
inline constexpr Categories kLineBreaks = set_of(Category::line_break);
/// The property White_Space.
inline constexpr Categories kSpaces =
    set_of(Category::Zs, Category::Zp) | set_of(Category::control_space) | kLineBreaks;
inline constexpr Categories kControls =
    set_of(Category::Cc) | set_of(Category::control_space) | kLineBreaks;

inline constexpr char32_t kCodePoints = 0x110000;

/// The category of each code point.
class CategoryTable {
public:
  CategoryTable();

  [[nodiscard]] Category operator[](char32_t code) const { return (*of_)[code]; }

  [[nodiscard]] bool in(char32_t code, Categories categories) const {
    return (set_of((*this)[code]) & categories) != 0;
  }

private:
  std::unique_ptr<std::array<Category, kCodePoints>> of_;
};

/// The one table, made at its first use.
[[nodiscard]] const CategoryTable& categories();

/// Whether `\w` of Rust's regular expressions takes it: letters, marks, digits, connectors,
/// joiners, and the symbols of the property Other_Alphabetic (circled and squared letters).
[[nodiscard]] bool is_word_character(char32_t code);

/// ASCII's punctuation, symbols included, and all of Unicode's.
[[nodiscard]] bool is_punctuation(char32_t code);

/// The full lower case of a character, as the property Lowercase_Mapping without conditions.
void append_lower(char32_t code, std::string& ret_text);

} // namespace mh::text
