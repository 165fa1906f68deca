#include "megatron_masks.hpp"

#include <megahost/error.hpp>

#include <algorithm>
#include <cmath>
#include <numeric>

namespace mh::masked {
namespace {

using Places = MegatronMasks::Places;

/// So many words, from one on.
Places joined(const std::vector<Places>& words, size_t first, size_t count) {
  Places all;
  for (size_t i = first; i < std::min(first + count, words.size()); ++i) {
    all.insert(all.end(), words[i].begin(), words[i].end());
  }
  return all;
}

} // namespace

MegatronMasks::MegatronMasks(
    const Tokenizer& tokenizer, int64_t vocab, const MegatronMasking& masking
)
    : masking_(masking) {
  const SpecialIds ids = tokenizer.special_ids();
  cls_ = ids.cls.value_or(-1);
  sep_ = ids.sep.value_or(-1);
  for (int64_t id = 0; id < std::min(vocab, tokenizer.vocab()); ++id) {
    try {
      goes_on_.push_back(tokenizer.token(static_cast<int32_t>(id)).starts_with("##"));
    } catch (const Error&) { // an id without a token
      goes_on_.push_back(false);
    }
  }
  for (int64_t n = 1; n <= masking.max_ngram; ++n) {
    shares_.push_back(1.0 / static_cast<double>(n));
  }
  shares_ = indexed::normalized(indexed::normalized(shares_)); // twice, as there
}

/// The words that may be hidden, or single tokens. A word that [SEP] cuts is one nevertheless.
std::vector<Places> MegatronMasks::words_of(std::span<const int64_t> tokens) const {
  std::vector<Places> words;
  for (size_t i = 0; i < tokens.size(); ++i) {
    const int64_t id = tokens[i];
    if (id == cls_ || id == sep_) {
      continue;
    }
    const bool goes_on =
        static_cast<size_t>(id) < goes_on_.size() && goes_on_[static_cast<size_t>(id)];
    if (goes_on && masking_.whole_words && !words.empty()) {
      words.back().push_back(i);
    } else {
      words.push_back({i});
    }
  }
  return words;
}

std::vector<Places> MegatronMasks::hide(
    std::vector<int64_t>& ret_tokens,
    int64_t target,
    indexed::RandomState& ret_random,
    const std::function<int64_t(int64_t id)>& hidden_as
) const {
  const std::vector<Places> words = words_of(ret_tokens);
  const double most = std::min( // halves are rounded to even, and `target` gives no whole number
      masking_.prob * static_cast<double>(target),
      std::max(1.0, std::nearbyint(static_cast<double>(ret_tokens.size()) * masking_.prob))
  );
  std::vector<size_t> order(words.size());
  std::iota(order.begin(), order.end(), size_t{0});
  ret_random.shuffle(std::span(order));
  std::vector<bool> hidden(ret_tokens.size());
  std::vector<Places> spans;
  size_t count = 0;
  for (const size_t word : order) {
    if (static_cast<double>(count) >= most) {
      break;
    }
    constexpr double kGeometric = 0.2;
    int64_t n = masking_.geometric ? std::min(ret_random.geometric(kGeometric), masking_.max_ngram)
                                   : static_cast<int64_t>(ret_random.choice(shares_)) + 1;
    Places span;
    for (; n > 0; --n) { // the longest that there is room for
      span = joined(words, word, static_cast<size_t>(n));
      if (most >= static_cast<double>(count + span.size())) {
        break;
      }
    }
    if (n == 0 || std::ranges::any_of(span, [&](size_t place) { return hidden[place]; })) {
      continue;
    }
    for (const size_t place : span) {
      hidden[place] = true;
      ret_tokens[place] = hidden_as(ret_tokens[place]);
    }
    count += span.size();
    spans.push_back(std::move(span));
  }
  std::ranges::sort(spans, {}, [](const Places& span) { return span.front(); });
  return spans;
}

} // namespace mh::masked
