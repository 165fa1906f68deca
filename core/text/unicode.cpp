#include "core/text/unicode.hpp"

#include "core/text/unicode_data.hpp"
#include "core/text/utf8.hpp"

#include <algorithm>
#include <iterator>

namespace mh::text {

CategoryTable::CategoryTable()
    : of_(std::make_unique<std::array<Category, kCodePoints>>()) {
  for (size_t i = 0; i < data::kCategoriesSize; ++i) {
    const uint32_t run = data::kCategories[i];
    const uint32_t end =
        i + 1 < data::kCategoriesSize ? data::kCategories[i + 1] >> 8 : uint32_t{kCodePoints};
    std::fill(of_->begin() + (run >> 8), of_->begin() + end, static_cast<Category>(run & 0xFF));
  }
}

const CategoryTable& categories() {
  static const CategoryTable table;
  return table;
}

namespace {

struct LowerRun {
  uint32_t first, last, step, difference;
};

/// The run that a code point would lie in.
LowerRun lower_run(char32_t code) {
  size_t low = 0, high = data::kLowerSize / 4;
  while (low < high) {
    const size_t middle = (low + high) / 2;
    if (data::kLower[4 * middle + 1] < code) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  const uint32_t* run = data::kLower + 4 * low;
  return low == data::kLowerSize / 4 ? LowerRun{1, 0, 1, 0}
                                     : LowerRun{run[0], run[1], run[2], run[3]};
}

} // namespace

bool is_word_character(char32_t code) {
  constexpr Categories kWord =
      kLetters | kMarks | set_of(Category::Nd, Category::Nl) | set_of(Category::Pc);
  return categories().in(code, kWord) || (code >= 0x24B6 && code <= 0x24E9) ||
         (code >= 0x1F130 && code <= 0x1F149) || (code >= 0x1F150 && code <= 0x1F169) ||
         (code >= 0x1F170 && code <= 0x1F189) || code == 0x200C || code == 0x200D;
}

bool is_punctuation(char32_t code) {
  return categories().in(code, code < 0x80 ? kPunctuation | kSymbols : kPunctuation);
}

void append_lower(char32_t code, std::string& ret_text) {
  if (code < 0x80) {
    ret_text += static_cast<char>(code >= 'A' && code <= 'Z' ? code + 32 : code);
    return;
  }
  if (code == 0x130) { // the one character with two
    ret_text += "i\xCC\x87";
    return;
  }
  const LowerRun run = lower_run(code);
  const bool has_lower =
      code >= run.first && code <= run.last && (code - run.first) % run.step == 0;
  append_utf8(has_lower ? static_cast<char32_t>(code + run.difference) : code, ret_text);
}

} // namespace mh::text
