#pragma once
/// Routers: which experts each token goes to, with which weight, and what keeps experts evenly
/// busy.
///
/// Everything is computed in float32. "Microbatch" is that of one data rank: the tokens of all
/// ranks that share it, so a layout changes no number.

#include "megahost/builder.hpp"
#include "megahost/context.hpp"
#include "megahost/export.hpp"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

namespace mh {

enum class RouterScore : uint8_t {
  topk_softmax, ///< softmax over the logits of the chosen experts
  softmax_topk, ///< the chosen experts' share of the softmax over all
  sigmoid,      ///< each expert by itself
};

struct RouterSpec {
  Axis embed;
  int64_t experts = 8;
  int64_t chosen = 2; ///< experts of a token, k
  RouterScore score = RouterScore::topk_softmax;
  bool normalise = false;    ///< the weights of a token are divided by their sum
  double scale = 1;          ///< factor of the weights
  int64_t groups = 1;        ///< experts are in so many groups ...
  int64_t groups_chosen = 1; ///< ... of which a token's experts are in the best so many

  // The methods that balance experts, in any combination; all losses with `balance_weight`. They
  // count the experts with a token's best scores, whatever bias and groups make of them
  // (arXiv:2412.19437, equation 18).
  bool auxiliary = true; ///< a loss on each microbatch
  bool sequence = false; ///< a loss on each sample
  bool global = false;   ///< a loss on what all data ranks have had in this step so far
  double balance_weight = 1e-2;
  std::optional<double>
      bias_rate{};     ///< a bias in the choice alone moves by so much after each step
  double z_weight = 0; ///< weight of a loss on large logits

  std::optional<double>
      capacity{};                ///< an expert takes so many times its even share of a microbatch
  bool drop_by_position = false; ///< drops the last of those too many; else the least likely
  bool logit_bias = false;       ///< whether logits have a trained bias
  double std = 0.02;             ///< standard deviation of the initial weights
  int64_t layers = 1;            ///< routers of the model: losses are logged as means over them
};

/// The experts that each token goes to. Dropped choices are -1, with weight 0.
struct Routing {
  at::Tensor choices;   ///< int64 [tokens, k]
  at::Tensor weights;   ///< float32 (float64 for float64) [tokens, k]
  int64_t capacity = 0; ///< rows of an expert in a microbatch, at most; 0: no limit
};

/// The choice by itself: no drops, no losses. `bias` [experts] may be undefined.
///
/// Shapes:  logits [tokens, experts] -> choices, weights [tokens, k]; and the scores that losses
///          balance, [tokens, experts], each token's of sum 1
/// Source:  megatron-core, transformer/moe/moe_utils.py; arXiv:2412.19437, section 2.1.2
[[nodiscard]] MH_API std::pair<Routing, at::Tensor>
choose_experts(const RouterSpec& spec, const at::Tensor& logits, const at::Tensor& bias);

/// experts / (k tokens²) sum over e of (sum over t of scores) counts: 1 where all are even.
///
/// Shapes:  scores [..., experts], summed over tokens; counts the same -> [...]
/// Source:  arXiv:2101.03961, equation 4
[[nodiscard]] MH_API at::Tensor balance_loss(
    const at::Tensor& scores, const at::Tensor& counts, int64_t chosen, double tokens, double of
);

/// The choices that are kept if an expert takes `capacity` of the tokens in this order.
///
/// Shapes:  routing of all tokens -> bool [tokens, k]
[[nodiscard]] MH_API at::Tensor
kept_choices(const Routing& routing, int64_t experts, int64_t capacity, bool by_position);

/// Parameters: `weight` [experts, embed], `logit_bias` [experts]; buffer `bias` where the choice
/// has one.
class MH_API Router {
public:
  Router(Builder& builder, const RouterSpec& spec);
  ~Router();
  Router(Router&&) noexcept;

  /// Adds losses and metrics to the context.
  ///
  /// Shapes:  x [seq, batch, embed] -> tokens are [seq, batch] in this order
  [[nodiscard]] Routing route(const at::Tensor& x, StepContext& context) const;

private:
  class History; // the step's counts
  struct Spread; // how tokens lie over ranks

  void add_losses(
      const at::Tensor& logits,
      const at::Tensor& scores,
      const Routing& routing,
      const Spread& spread,
      StepContext& context
  ) const;
  /// The counts that losses are of, [batch, experts]; adds those that are metrics.
  [[nodiscard]] at::Tensor add_counts(
      const at::Tensor& scores, const Routing& routing, const Spread& spread, StepContext& context
  ) const;
  void limit(Routing& routing, const Spread& spread, StepContext& context) const;

  RouterSpec spec_;
  std::string name_;
  Parameter* weight_;
  Parameter* logit_bias_ = nullptr;
  std::shared_ptr<History> history_;
};

} // namespace mh
