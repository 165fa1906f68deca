#include "core/model/spans.hpp"

#include <algorithm>
#include <map>
#include <optional>

namespace mh {

namespace {

using Ids = std::vector<int32_t>;

const std::vector<int64_t>* array(const Sample& sample, const std::string& name) {
  const auto found = sample.find(name);
  return found == sample.end() ? nullptr : std::get_if<std::vector<int64_t>>(&found->second);
}

/// Ids before the first end of a document.
std::span<const int32_t> before_end(std::span<const int32_t> ids, const Tokenizer& tokenizer) {
  const auto eos = tokenizer.special_ids().eos;
  const auto end = eos ? eos : tokenizer.end_of_document();
  return ids.first(static_cast<size_t>(std::ranges::find(ids, end) - ids.begin()));
}

/// Spans by the sentinels before them; of two with the same sentinel the first.
std::map<int32_t, Ids> spans_of(std::span<const int32_t> ids, const Tokenizer& tokenizer) {
  const Ids sentinels = tokenizer.special_ids().extra;
  std::map<int32_t, Ids> spans;
  std::optional<int32_t> sentinel;
  Ids span;
  const auto finish = [&] {
    if (sentinel) {
      spans.emplace(*sentinel, span);
    }
    span.clear();
  };
  for (const int32_t id : before_end(ids, tokenizer)) {
    if (std::ranges::count(sentinels, id) > 0) {
      finish();
      sentinel = id;
    } else {
      span.push_back(id);
    }
  }
  finish();
  return spans;
}

} // namespace

Ids first_document(const Sample& sample, const std::string& sequence, const std::string& name) {
  const std::string prefix = sequence.empty() ? "" : sequence + "_";
  const auto* tokens = array(sample, prefix + name);
  if (tokens == nullptr) {
    return {};
  }
  auto length = std::ssize(*tokens);
  if (const auto* segments = array(sample, prefix + "segments"); segments != nullptr) {
    const auto change = std::ranges::adjacent_find(*segments, std::ranges::not_equal_to());
    length = change == segments->end() ? length : change - segments->begin() + 1;
  }
  return {tokens->begin(), tokens->begin() + length};
}

bool has_spans(std::span<const int32_t> ids, const Tokenizer& tokenizer) {
  const Ids sentinels = tokenizer.special_ids().extra;
  return std::ranges::find_first_of(ids, sentinels) != ids.end();
}

std::string filled_text(
    std::span<const int32_t> ids,
    std::span<const int32_t> written,
    std::span<const int32_t> taken,
    const Tokenizer& tokenizer
) {
  const Ids sentinels = tokenizer.special_ids().extra;
  const auto guesses = spans_of(written, tokenizer), right = spans_of(taken, tokenizer);
  const auto text_of = [&tokenizer](const std::map<int32_t, Ids>& spans, int32_t sentinel) {
    const auto found = spans.find(sentinel);
    return found == spans.end() ? "" : tokenizer.decode(found->second);
  };
  std::string text;
  ids = before_end(ids, tokenizer);
  while (true) {
    const auto next = std::ranges::find_first_of(ids, sentinels);
    const auto before = static_cast<size_t>(next - ids.begin());
    text += tokenizer.decode(ids.first(before));
    if (next == ids.end()) {
      return text;
    }
    const std::string guess = text_of(guesses, *next), answer = text_of(right, *next);
    text += (guess == answer ? "" : "[-" + answer + "-]") + "{+" + guess + "+}";
    ids = ids.subspan(before + 1);
  }
}

} // namespace mh
