#include "core/text/pattern.hpp"

#include "core/base/text.hpp"
#include "megahost/error.hpp"

#include <array>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

namespace mh::text {

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
    refuse_pattern(where, "a regular expression of more than 65536 bytes");
  }
  const std::string rewritten = with_ranges(expression, dialect, where);
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
    refuse_pattern(
        where,
        "the regular expression " + string_text(expression.substr(0, 60)) +
            " is wrong: " + reinterpret_cast<const char*>(message.data())
    );
  }
  code_->compiled = pcre2_jit_compile(code_->code.get(), PCRE2_JIT_COMPLETE) == 0;
}

Pattern::~Pattern() = default;

std::optional<Pattern::Match> Pattern::find(std::string_view text, size_t from) const {
  struct Free {
    void operator()(pcre2_match_data* data) const { pcre2_match_data_free(data); }
  };

  const std::unique_ptr<pcre2_match_data, Free> data(pcre2_match_data_create(1, nullptr));
  const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  const uint32_t options = PCRE2_NO_UTF_CHECK;
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
  return Match(place[0], place[1]);
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
          pattern_->find_behind(text, begin).value_or(Pattern::Match(text.size(), text.size()));
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
