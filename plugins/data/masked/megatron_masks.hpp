#pragma once
/// The tokens of a sample that Megatron hides.

#include "../indexed/legacy_random.hpp"

#include <megahost/tokenizer.hpp>

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace mh::masked {

struct MegatronMasking {
  double prob = 0.15;
  bool whole_words = true;
  int64_t max_ngram = 1;  ///< words of a span
  bool geometric = false; ///< how many of them: geometric with 0.2; else n with share 1 / n
};

/// Source:  megatron-core 0.16.1, masked_dataset.py, _create_masked_lm_predictions
class MegatronMasks {
public:
  MegatronMasks(const Tokenizer& tokenizer, int64_t vocab, const MegatronMasking& masking);

  /// Places of tokens that are hidden together, in order.
  using Places = std::vector<size_t>;

  /// target:    tokens that the sample was to have
  /// hidden_as: what stands for a hidden token; it may draw
  /// Returns:   spans in the order of their first tokens; `ret_tokens` then has what stands for them
  [[nodiscard]] std::vector<Places> hide(
      std::vector<int64_t>& ret_tokens,
      int64_t target,
      indexed::RandomState& ret_random,
      const std::function<int64_t(int64_t id)>& hidden_as
  ) const;

private:
  [[nodiscard]] std::vector<Places> words_of(std::span<const int64_t> tokens) const;

  MegatronMasking masking_;
  int64_t cls_ = -1, sep_ = -1;
  std::vector<bool> goes_on_; // by id: whether the token goes on with a word
  std::vector<double> shares_;
};

} // namespace mh::masked
