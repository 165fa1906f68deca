#include "core/text/normal_form.hpp"

#include "core/text/unicode_data.hpp"
#include "core/text/utf8.hpp"

#include <algorithm>
#include <unordered_map>
#include <vector>

namespace mh::text {

namespace {

constexpr char32_t kHangul = 0xAC00, kLead = 0x1100, kVowel = 0x1161, kTrail = 0x11A7;
constexpr char32_t kLeads = 19, kVowels = 21, kTrails = 28;

struct FormChange {
  uint8_t kind = 0; // as in unicode_data.hpp
  uint8_t length = 0;
  const uint32_t* parts = nullptr;
};

uint64_t pair_key(char32_t first, char32_t second) {
  return uint64_t{first} << 32 | second;
}

/// The tables of decompositions and compositions.
struct Tables {
  Tables() {
    for (size_t i = 0; i < data::kDecompositionsSize;) {
      const uint32_t head = data::kDecompositions[i];
      const FormChange change{
          static_cast<uint8_t>(head >> 6 & 3),
          static_cast<uint8_t>(head & 63),
          data::kDecompositions + i + 1};
      changes.emplace(head >> 8, change);
      if (change.kind == 0) {
        composed.emplace(pair_key(change.parts[0], change.parts[1]), head >> 8);
      }
      i += 1 + change.length;
    }
    for (size_t i = 0; i + 1 < data::kCombiningClassesSize; ++i) {
      const uint32_t run = data::kCombiningClasses[i];
      for (uint32_t code = run >> 8;
           (run & 0xFF) != 0 && code < data::kCombiningClasses[i + 1] >> 8;
           ++code) {
        classes.emplace(code, static_cast<uint8_t>(run));
      }
    }
  }

  std::unordered_map<char32_t, FormChange> changes;
  std::unordered_map<uint64_t, char32_t> composed;
  std::unordered_map<char32_t, uint8_t> classes;

  [[nodiscard]] uint8_t class_of(char32_t code) const {
    const auto found = code < 0x300 ? classes.end() : classes.find(code);
    return found == classes.end() ? uint8_t{0} : found->second;
  }
};

const Tables& tables() {
  static const Tables all;
  return all;
}

void decompose(char32_t code, bool compatibility, std::u32string& ret_codes) {
  if (code < 0xA0) {
    ret_codes += code;
    return;
  }
  if (code >= kHangul && code < kHangul + kLeads * kVowels * kTrails) {
    const char32_t place = code - kHangul;
    ret_codes += kLead + place / (kVowels * kTrails);
    ret_codes += kVowel + place % (kVowels * kTrails) / kTrails;
    if (place % kTrails != 0) {
      ret_codes += kTrail + place % kTrails;
    }
    return;
  }
  const auto found = tables().changes.find(code);
  if (found == tables().changes.end() || (found->second.kind == 2 && !compatibility)) {
    ret_codes += code;
    return;
  }
  for (uint8_t i = 0; i < found->second.length; ++i) {
    decompose(found->second.parts[i], compatibility, ret_codes);
  }
}

/// Sorts each run of marks by combining class.
void reorder(std::u32string& codes) {
  for (size_t begin = 0; begin < codes.size();) {
    if (tables().class_of(codes[begin]) == 0) {
      ++begin;
      continue;
    }
    size_t end = begin;
    while (end < codes.size() && tables().class_of(codes[end]) != 0) {
      ++end;
    }
    std::stable_sort(
        codes.begin() + static_cast<ptrdiff_t>(begin),
        codes.begin() + static_cast<ptrdiff_t>(end),
        [](char32_t a, char32_t b) { return tables().class_of(a) < tables().class_of(b); }
    );
    begin = end;
  }
}

/// The composite of two characters; 0 if there is none.
char32_t compose(char32_t first, char32_t second) {
  if (first >= kLead && first < kLead + kLeads && second >= kVowel && second < kVowel + kVowels) {
    return kHangul + ((first - kLead) * kVowels + second - kVowel) * kTrails;
  }
  if (first >= kHangul && first < kHangul + kLeads * kVowels * kTrails &&
      (first - kHangul) % kTrails == 0 && second > kTrail && second < kTrail + kTrails) {
    return first + second - kTrail;
  }
  const auto found = tables().composed.find(pair_key(first, second));
  return found == tables().composed.end() ? 0 : found->second;
}

void compose_all(std::u32string& codes) {
  constexpr size_t kNone = SIZE_MAX;
  size_t starter = kNone, kept = 0;
  int last_class = -1; // class of what stands between the starter and here; -1: nothing
  for (size_t i = 0; i < codes.size(); ++i) {
    const char32_t code = codes[i];
    const int combining = tables().class_of(code);
    if (starter != kNone && last_class < combining) {
      if (const char32_t whole = compose(codes[starter], code)) {
        codes[starter] = whole;
        continue;
      }
    }
    if (combining == 0) {
      starter = kept;
      last_class = -1;
    } else {
      last_class = combining;
    }
    codes[kept++] = code;
  }
  codes.resize(kept);
}

} // namespace

std::string normalized(std::string_view text, NormalForm form) {
  const bool plain = std::ranges::all_of(text, [](char c) { return (c & 0x80) == 0; });
  if (plain) {
    return std::string(text);
  }
  const bool compatibility = form == NormalForm::nfkc || form == NormalForm::nfkd;
  std::u32string codes;
  codes.reserve(text.size());
  for_each_character(text, [&](char32_t code, std::string_view) {
    decompose(code, compatibility, codes);
  });
  reorder(codes);
  if (form == NormalForm::nfc || form == NormalForm::nfkc) {
    compose_all(codes);
  }
  std::string result;
  result.reserve(text.size());
  for (const char32_t code : codes) {
    append_utf8(code, result);
  }
  return result;
}

} // namespace mh::text
