#include "core/text/cursor.hpp"
#include "core/text/splitter.hpp"

namespace mh::text {

namespace {

/// Kana and the first block of ideographs: `[一-龥぀-ゟ゠-ヿ]`.
bool is_cjk(char32_t code) {
  return (code >= 0x4E00 && code <= 0x9FA5) || (code >= 0x3040 && code <= 0x30FF);
}

/// A cursor for which the text ends where the first two patterns cut it: at numbers and at CJK.
class SegmentCursor : public Cursor {
public:
  using Cursor::Cursor;

  [[nodiscard]] Categories here() const {
    const Categories category = Cursor::here();
    const bool cut =
        (category & kNumbers) != 0 || (!Cursor::ended() && is_cjk(decode_at(at()).code));
    return cut ? 0 : category;
  }

  [[nodiscard]] bool ended() const { return here() == 0; }

  [[nodiscard]] bool in(Categories set) const { return (here() & set) != 0; }

  void skip(Categories set) {
    while (in(set)) {
      step();
    }
  }
};

bool is_ascii_letter(char c) {
  return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z');
}

/// The end of the third pattern's match at the cursor; null if there is none.
const char* match_end(SegmentCursor cursor, const char* end) {
  constexpr Categories kOthers = kPunctuation | kSymbols;
  const char* const begin = cursor.at();
  const char* at = begin + 1;
  const Categories first = cursor.here();
  if ((first & kOthers) != 0 && (*begin & 0x80) == 0 && at != end && is_ascii_letter(*at)) {
    while (at != end && is_ascii_letter(*at)) {
      ++at;
    }
    return at;
  }
  if ((first & (kLineBreaks | kLetters | kOthers)) == 0) {
    SegmentCursor next = cursor;
    next.step();
    if (next.in(kLetters | kMarks)) {
      next.skip(kLetters | kMarks);
      return next.at();
    }
  }
  if ((first & (kLetters | kMarks)) != 0) {
    cursor.skip(kLetters | kMarks);
    return cursor.at();
  }
  SegmentCursor others = cursor;
  if (*begin == ' ') {
    others.step();
  }
  if (others.in(kOthers)) {
    others.skip(kOthers);
    others.skip(kLineBreaks);
    return others.at();
  }
  return (first & kSpaces) != 0 ? spaces_end(cursor, SpaceRule::lines) : nullptr;
}

const char* word_end(const char* begin, const char* end) {
  Cursor cursor(begin, end);
  if (cursor.in(kNumbers)) {
    cursor.skip(kNumbers, 3);
    return cursor.at();
  }
  if (is_cjk(decode_at(begin).code)) {
    while (!cursor.ended() && is_cjk(decode_at(cursor.at()).code)) {
      cursor.step();
    }
    return cursor.at();
  }
  SegmentCursor segment(begin, end);
  if (const char* found = match_end(segment, end)) {
    return found;
  }
  do { // what no pattern matches
    segment.step();
  } while (!segment.ended() && match_end(segment, end) == nullptr);
  return segment.at();
}

class DeepSeekSplitter final : public Splitter {
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
};

} // namespace

std::unique_ptr<Splitter> deepseek_splitter() {
  return std::make_unique<DeepSeekSplitter>();
}

} // namespace mh::text
