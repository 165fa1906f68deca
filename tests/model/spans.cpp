// Texts in which sentinels stand for spans.

#include "core/model/spans.hpp"

#include <doctest/doctest.h>

#include <optional>
#include <string>

using namespace mh;

namespace {

/// Ids are bytes; 0 and 1 are sentinels, 2 is the end.
class Letters : public Tokenizer {
public:
  [[nodiscard]] int64_t vocab() const override { return 128; }

  [[nodiscard]] std::vector<int32_t> encode(std::string_view text) const override {
    return {text.begin(), text.end()};
  }

  [[nodiscard]] std::string decode(std::span<const int32_t> ids) const override {
    return {ids.begin(), ids.end()};
  }

  [[nodiscard]] SpecialIds special_ids() const override {
    SpecialIds special;
    special.eos = 2;
    special.extra = {0, 1};
    return special;
  }
};

const Letters kLetters;

std::vector<int32_t> ids(const std::string& text) {
  return kLetters.encode(text);
}

} // namespace

TEST_CASE("spans are filled in at their sentinels, and compared with what was taken out") {
  using std::string_literals::operator""s;
  const auto text = ids("#incl\0 <\1>\2"s);
  const auto taken = ids("x\0ude\1string\2\0no"s);
  CHECK(has_spans(text, kLetters));
  CHECK_FALSE(has_spans(ids("#include"), kLetters));
  CHECK(filled_text(text, taken, taken, kLetters) == "#incl{+ude+} <{+string+}>");
  CHECK(
      filled_text(text, ids("\0ude\1map"s), taken, kLetters) == "#incl{+ude+} <[-string-]{+map+}>"
  );
  // In another order, the second of a sentinel, and one that was not written.
  CHECK(
      filled_text(text, ids("\1string\0ude\0no"s), taken, kLetters) == "#incl{+ude+} <{+string+}>"
  );
  CHECK(filled_text(text, ids("\0ude"s), taken, kLetters) == "#incl{+ude+} <[-string-]{++}>");
}

TEST_CASE("a document ends where its segments change") {
  const Sample sample{
      {"tokens", std::vector<int64_t>{5, 6, 7}},
      {"encoder_tokens", std::vector<int64_t>{1, 2, 0, 0}},
      {"encoder_segments", std::vector<int64_t>{0, 0, 1, 1}}};
  CHECK(first_document(sample, "") == std::vector<int32_t>{5, 6, 7});
  CHECK(first_document(sample, "encoder") == std::vector<int32_t>{1, 2});
  CHECK(first_document(sample, "query").empty());
}
