#include "words.hpp"

#include <megahost/error.hpp>

#include <cstdint>
#include <cstring>
#include <string>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

namespace mh::gpt2 {
namespace {

// White space is written out: PCRE2's \s takes U+180E for a space, which it has not been since
// Unicode 6.3.
#define MH_SPACE R"(\t-\r \x{85}\p{Z})"
constexpr const char* kPattern =
    "'(?:[sdmt]|ll|ve|re)| ?\\p{L}+| ?\\p{N}+| ?[^" MH_SPACE "\\p{L}\\p{N}]+|[" MH_SPACE
    "]+(?![^" MH_SPACE "])|[" MH_SPACE "]+";
#undef MH_SPACE

pcre2_code* code_of(void* code) {
  return static_cast<pcre2_code*>(code);
}

/// Length of the character at the beginning of `text`; 0 if there is none.
///
/// Source:  The Unicode Standard, table 3-7, well-formed UTF-8 byte sequences
size_t character_length(std::string_view text) {
  const auto byte = [&](size_t i) {
    return i < text.size() ? static_cast<unsigned char>(text[i]) : uint8_t{0};
  };
  const auto follows = [&](size_t i) { return (byte(i) & 0xC0) == 0x80; };
  const uint8_t first = byte(0), second = byte(1);
  if (first < 0x80) {
    return text.empty() ? 0 : 1;
  }
  if (first >= 0xC2 && first <= 0xDF) {
    return follows(1) ? 2 : 0;
  }
  if (first >= 0xE0 && first <= 0xEF) {
    const bool overlong = first == 0xE0 && second < 0xA0;
    const bool surrogate = first == 0xED && second > 0x9F;
    return follows(1) && follows(2) && !overlong && !surrogate ? 3 : 0;
  }
  if (first >= 0xF0 && first <= 0xF4) {
    const bool overlong = first == 0xF0 && second < 0x90;
    const bool too_large = first == 0xF4 && second > 0x8F;
    return follows(1) && follows(2) && follows(3) && !overlong && !too_large ? 4 : 0;
  }
  return 0;
}

} // namespace

size_t valid_utf8_prefix(std::string_view text) {
  size_t at = 0;
  while (at < text.size()) {
    uint64_t eight = 0;
    if (at + sizeof(eight) <= text.size()) {
      std::memcpy(&eight, text.data() + at, sizeof(eight));
      if ((eight & 0x8080808080808080) == 0) {
        at += sizeof(eight);
        continue;
      }
    }
    const size_t length = character_length(text.substr(at));
    if (length == 0) {
      break;
    }
    at += length;
  }
  return at;
}

WordPattern::WordPattern() {
  int error = 0;
  PCRE2_SIZE at = 0;
  code_ = pcre2_compile(
      reinterpret_cast<PCRE2_SPTR>(kPattern),
      PCRE2_ZERO_TERMINATED,
      PCRE2_UTF | PCRE2_ANCHORED,
      &error,
      &at,
      nullptr
  );
  MH_ASSERT(code_ != nullptr, "the pattern of words, at " + std::to_string(at));
  compiled_ = pcre2_jit_compile(code_of(code_), PCRE2_JIT_COMPLETE) == 0;
}

WordPattern::~WordPattern() {
  pcre2_code_free(code_of(code_));
}

WordPattern::Scratch::Scratch(const WordPattern& pattern)
    : match_(pcre2_match_data_create_from_pattern(code_of(pattern.code_), nullptr), [](void* data) {
      pcre2_match_data_free(static_cast<pcre2_match_data*>(data));
    }) {}

size_t WordPattern::word_end(std::string_view text, size_t begin, Scratch& scratch) const {
  auto* data = static_cast<pcre2_match_data*>(scratch.match_.get());
  const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  const int found =
      compiled_ ? pcre2_jit_match(code_of(code_), subject, text.size(), begin, 0, data, nullptr)
                : pcre2_match(
                      code_of(code_), subject, text.size(), begin, PCRE2_NO_UTF_CHECK, data, nullptr
                  );
  const size_t end = found > 0 ? pcre2_get_ovector_pointer(data)[1] : begin;
  MH_ASSERT(end > begin, "a text without a word: PCRE2 says " + std::to_string(found));
  return end;
}

} // namespace mh::gpt2
