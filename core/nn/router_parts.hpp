#pragma once
/// The parts that the files of the router share: a step's counts, and how a microbatch's tokens lie
/// over ranks.

#include "megahost/nn/router.hpp"
#include "megahost/placement.hpp"
#include "megahost/step_state.hpp"

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

namespace mh {

/// Behind a router's name: its metric of a step, NaN where a logit was no number.
inline constexpr const char* kTokensPerExpert = "tokens_per_expert";

/// How many times each expert was chosen: like choices, without its last dimension's k.
[[nodiscard]] at::Tensor
count_choices(const at::Tensor& choices, int64_t experts, at::ScalarType type);

/// The counts of a step's microbatches, the bias that follows from them, and running means.
class Router::History : public StepState {
public:
  History(at::Tensor bias, double rate, std::vector<MeshAxis> axes)
      : bias_(std::move(bias))
      , rate_(rate)
      , axes_(std::move(axes)) {}

  [[nodiscard]] const at::Tensor& bias() const { return bias_; }

  /// Counts of the experts that tokens go to, and of those that losses count. A microbatch that
  /// comes again says the same.
  void keep(int64_t microbatch, const at::Tensor& busy, const at::Tensor& wanted) {
    counts_[microbatch] = {busy, wanted};
  }

  /// The mean of what losses count over the microbatches up to this one.
  [[nodiscard]] at::Tensor mean(int64_t microbatch) const;

  void update(const Mesh& mesh) override;

  void forget() override { counts_.clear(); }

private:
  at::Tensor bias_; // undefined: no bias
  double rate_;
  std::vector<MeshAxis> axes_; // that split samples

  struct Counts {
    at::Tensor busy, wanted;
  };

  std::map<int64_t, Counts> counts_;
};

/// How the tokens of a microbatch lie over ranks, and what is a sum over some of them.
struct Router::Spread {
  std::vector<MeshAxis> seq;   // axes that cut samples, inner ones first
  std::vector<MeshAxis> batch; // axes that shard samples
  Placement partial, whole;    // placements of sums over axes that the trainer does not sum over
  int64_t ranks = 1;           // ranks that share a microbatch
  int64_t summed = 1;          // how many of those the trainer sums over

  Spread(const Placement& placed, const Placement& tokens, const Mesh& mesh);

  /// A sum over this rank's tokens becomes one over those that the trainer does not sum over.
  [[nodiscard]] at::Tensor total(const at::Tensor& sum, const Mesh& mesh) const {
    return convert(sum, partial, whole, mesh);
  }

  /// The sum over ranks, without a gradient.
  [[nodiscard]] static at::Tensor
  over(const std::vector<MeshAxis>& axes, const at::Tensor& sum, const Mesh& mesh);
};

} // namespace mh
