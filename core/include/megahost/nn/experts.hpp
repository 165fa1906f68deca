#pragma once
/// A mixture of experts: feed-forwards of which each token passes a few.
///
/// ```cpp
/// mh::MixtureOfExperts mixture(builder, {
///     .router = {.embed = embed, .experts = 8, .chosen = 2},
///     .hidden = 1408,
///     .activation = mh::ActivationKind::swiglu,
/// });
/// ```
///
/// Experts lie on the expert mesh (mesh.hpp): `expert -> ep`, `expert_mlp -> etp`. The layer shards
/// tokens so that each lies on one rank of a stage; how they get to the experts of other ranks is a
/// strategy's mechanism (`rules.experts`).

#include "megahost/builder.hpp"
#include "megahost/context.hpp"
#include "megahost/export.hpp"
#include "megahost/nn/feed_forward.hpp"
#include "megahost/nn/linear.hpp"
#include "megahost/nn/router.hpp"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace mh {

struct ExpertsSpec {
  Axis embed;
  int64_t experts = 8;
  int64_t hidden = 0; ///< units of one expert
  ActivationFunction activation = ActivationKind::swiglu;
  bool bias = false;
  double std = 0.02, out_std = 0.02;
};

/// The experts of this rank.
///
/// Parameters: `gate_up.weight` [experts, 2, hidden, embed] (gated kinds) or `up.weight` [experts,
/// hidden, embed]; `down.weight` [experts, embed, hidden]; their biases without the last dimension.
class MH_API Experts {
public:
  Experts(Builder& builder, const ExpertsSpec& spec);

  [[nodiscard]] int64_t count() const { return spec_.experts; } ///< experts of the whole layer

  [[nodiscard]] int64_t first() const { return first_; } ///< the first expert of this rank

  [[nodiscard]] int64_t local() const { return local_; } ///< how many it has

  /// Rows ends[e] .. ends[e + 1] - 1 through this rank's expert e; partial over etp.
  ///
  /// Shapes:  rows [n, embed]; ends [local + 1] integers on their device -> same
  [[nodiscard]] at::Tensor
  forward(const at::Tensor& rows, const at::Tensor& ends, StepContext& context) const;

  /// Rows through experts whose ends the host knows.
  [[nodiscard]] at::Tensor
  forward(const at::Tensor& rows, const std::vector<int64_t>& ends, StepContext& context) const;

  /// The contribution of this rank's experts to each token: the weighted sum of those among its
  /// choices.
  ///
  /// Shapes:  x [tokens, embed] -> same, partial over ep and etp
  [[nodiscard]] at::Tensor
  mixed(const at::Tensor& x, const Routing& routing, int64_t pad, StepContext& context) const;

  /// One matrix of each expert.
  struct Product {
    Parameter* weight = nullptr;
    Parameter* bias = nullptr; ///< null without
    bool adds_bias = true;     ///< among ranks whose sums make the output, one adds it
  };

private:
  ExpertsSpec spec_;
  Product up_, down_;
  int64_t first_ = 0, local_ = 0;
};

/// The first rows of `experts` experts that share `rows` evenly; the first experts take what is
/// left over.
[[nodiscard]] MH_API std::vector<int64_t> even_ends(int64_t rows, int64_t experts);

/// How tokens reach experts of other ranks: what a strategy that shards experts supplies.
class MH_API ExpertMethod {
public:
  virtual ~ExpertMethod();

  /// The weighted sum of each token's experts, differentiable. `pad` > 0: the GEMMs see so many
  /// rows of each expert and microbatch, however many chose it.
  ///
  /// Shapes:  x [tokens, embed], each token on one rank of the stage -> same
  /// Ranks:   collective over ep and etp
  [[nodiscard]] virtual at::Tensor mixed(
      const at::Tensor& x,
      const Routing& routing,
      int64_t pad,
      const Experts& experts,
      StepContext& context
  ) const = 0;
};

struct MixtureSpec {
  RouterSpec router;
  int64_t hidden = 0; ///< units of one expert
  ActivationFunction activation = ActivationKind::swiglu;
  bool bias = false; ///< whether experts and the shared feed-forward have biases
  bool pad = false;  ///< whether each expert's rows are padded to the capacity
  double std = 0.02, out_std = 0.02;
  /// Elements of what experts read and make, projected from and to `router.embed`; the same without.
  std::optional<int64_t> latent{};
  std::optional<int64_t> shared{}; ///< units of a feed-forward that every token passes
  bool shared_gate = false;        ///< whether it is weighted by sigmoid(gate x)
};

/// A router, experts, and perhaps a shared feed-forward in addition to them.
///
/// Parameters: `router.weight`, `experts.*`, `latent_down.weight` [latent, embed],
/// `latent_up.weight` [embed, latent], `shared.*`, `shared_gate.weight`.
///
/// Source:  arXiv:2512.20856 (latents of experts: LatentMoE)
class MH_API MixtureOfExperts : public FeedForwardPart {
public:
  MixtureOfExperts(Builder& builder, const MixtureSpec& spec);
  [[nodiscard]] at::Tensor forward(const at::Tensor& x, StepContext& context) const override;

  [[nodiscard]] bool reads_cache() const override { return true; }

private:
  [[nodiscard]] at::Tensor routed(const at::Tensor& x, StepContext& context) const;

  Axis embed_;
  Axis inner_; // what experts read and make
  bool pad_;
  std::string name_;
  Router router_;
  std::optional<Linear> latent_down_, latent_up_;
  Experts experts_;
  std::optional<FeedForward> shared_;
  std::optional<Linear> shared_gate_;
};

} // namespace mh
