#pragma once
/// Tokens from a model: one forward pass for each, over a cache of keys and values where the model
/// fills one.

#include "core/session/session.hpp"
#include "megahost/error.hpp"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace mh {

/// How a token is drawn from the model's scores: temperature, then top_k, then top_p.
///
/// Source:  arXiv:1904.09751 (top_p)
struct Sampling {
  double temperature = 0.8; ///< 0: the most likely token
  int64_t top_k = 0;        ///< draws from the k most likely tokens only; 0: from all
  double top_p = 1;         ///< draws from the most likely tokens that have this share together
  uint64_t seed = 1234;
};

/// Draws from scores; `draw` numbers the draws of a seed. Ties go to the lower id.
///
/// Shapes:  logits [vocab] on the host, any float
[[nodiscard]] int32_t
choose_token(const at::Tensor& logits, const Sampling& sampling, uint64_t draw);

struct Generated {
  std::vector<int32_t> ids; ///< without the prompt and without the end of the document
  bool ended = false;       ///< the model ended the document
  bool cached = false;      ///< keys and values were kept
  double first_seconds = 0; ///< up to the first token: reading the prompt
  double seconds = 0;       ///< for all tokens
};

struct GenerateOptions {
  Sampling sampling{};
  int64_t tokens = 256; ///< at most so many
  bool cache = true;    ///< false: each token reads everything before it again
  /// Tokens of the sequences that the model reads in addition, by name: what an encoder-decoder
  /// writes about.
  std::map<std::string, std::vector<int32_t>> sequences{};
};

/// A model that reads no tokens, gives no scores of the next one, or lets them depend on later ones.
class WritesNoText : public Error {
public:
  using Error::Error;
};

/// Whether a model reads `tokens` and gives `logits`, as one that continues texts does.
[[nodiscard]] bool scores_tokens(const Architecture& architecture);

/// Scores that a model gives for each token of a text: of the next one, or where it reads in both
/// directions of the token itself.
///
/// Shapes:  [ids, vocab] float64 on the host
/// Throws:  mh::Error (exit code 5) for no token, ids outside the vocabulary, more tokens than
///          model.seq_length; WritesNoText
[[nodiscard]] at::Tensor token_scores(const Session& session, const std::vector<int32_t>& ids);

/// Continues a prompt; `on_token` gets each token as it comes and returns false to stop there.
///
/// The model looks back on at most `model.seq_length` tokens. When there are more, it goes on from
/// the last half of them, with or without a cache: both give the same tokens, to rounding. First
/// the beginning of the prompt is read in two ways, to see that the model can be used so.
/// Throws:  mh::Error (exit code 5) for an empty prompt, ids outside the vocabulary, sequences that
///          are missing or too long, a model that gives others over a cache; WritesNoText
Generated generate(
    const Session& session,
    std::vector<int32_t> prompt,
    const GenerateOptions& options,
    const std::function<bool(int32_t)>& on_token
);

/// The largest difference of two tensors of scores, as a share of the first's largest; NaN if one
/// has such a score.
[[nodiscard]] double score_distance(const at::Tensor& a, const at::Tensor& b);

/// The text of tokens as they come: a character is given out when it is whole.
class TextStream {
public:
  TextStream(const Tokenizer& tokenizer, std::vector<int32_t> prompt);

  /// The text that a further token adds, valid UTF-8.
  [[nodiscard]] std::string add(int32_t id);
  /// The rest; a character that was never finished becomes U+FFFD.
  [[nodiscard]] std::string finish();

private:
  const Tokenizer& tokenizer_;
  std::vector<int32_t> ids_;
  size_t given_; // bytes of the text of ids_
};

} // namespace mh
