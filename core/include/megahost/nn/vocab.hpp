#pragma once
/// The output layer: logits over the vocabulary and their cross entropy.

#include "megahost/builder.hpp"
#include "megahost/context.hpp"
#include "megahost/export.hpp"
#include "megahost/nn/linear.hpp"

#include <ATen/core/Tensor.h>

#include <optional>
#include <string>

namespace mh {

/// Scores of a token. `weight` [vocab, embed] is its own or a shared embedding's; `bias` [vocab],
/// if it has one, is its own.
///
/// The loss is computed in chunks of tokens, in float32, so that the full logits never exist; a
/// split vocabulary reduces three numbers per token and gathers nothing. If the loss's factor is
/// known ahead, the same pass makes the gradients; otherwise logits are recomputed in backward.
class MH_API VocabHead {
public:
  /// Its own parameter `weight`, or the one named `tied` if not empty. Logits z become
  /// cap tanh(z / cap) unless `cap` is 0 (arXiv:2408.00118 section 2).
  VocabHead(
      Builder& builder,
      Axis embed,
      Axis vocab,
      double std,
      const std::string& tied = "",
      bool bias = false,
      double cap = 0
  );

  /// Shapes:  hidden [seq, batch, embed] -> logits [seq, batch, vocab] of the true vocabulary
  [[nodiscard]] at::Tensor logits(const at::Tensor& hidden, StepContext& context) const;

  /// Sum over this rank's tokens of mask * cross entropy: a float32 scalar. `factor` is what the
  /// caller will multiply it by before the backward pass, if known: StepContext::loss_factor of the
  /// array and weight that the loss is added with. `ret_correct`, if not null, becomes the sum of
  /// the masks of the tokens that have their label as their best score: a scalar without gradient.
  ///
  /// Shapes:  hidden [seq, batch, embed]; labels [seq, batch] int64; mask [seq, batch] float32
  /// Throws:  mh::Error (exit code 5) for a label outside the vocabulary where its mask is not 0
  [[nodiscard]] at::Tensor loss(
      const at::Tensor& hidden,
      const at::Tensor& labels,
      const at::Tensor& mask,
      StepContext& context,
      std::optional<double> factor = std::nullopt,
      at::Tensor* ret_correct = nullptr
  ) const;

private:
  Linear linear_;
  Parameter* bias_ = nullptr;
  double cap_;
  Axis vocab_;
  int64_t first_ = 0; // first vocabulary entry of this rank
  int64_t rows_ = 0;  // true entries of this rank
};

} // namespace mh
