// Experts of limited capacity: which choices they drop.

#include "core/nn/router_parts.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/zeros.h>

#include <cmath>

namespace mh {

using at::Tensor;

Tensor kept_choices(const Routing& routing, int64_t experts, int64_t capacity, bool by_position) {
  const at::NoGradGuard no_grad;
  const Tensor& choices = routing.choices;
  const int64_t tokens = choices.size(0);
  if (capacity >= tokens) {
    return at::ones_like(choices, choices.options().dtype(at::kBool));
  }
  const auto table = [&](const Tensor& values) {
    return at::zeros({tokens, experts}, values.options()).scatter_(1, choices, values);
  };
  Tensor kept;
  if (by_position) {
    kept = table(at::ones_like(choices)).cumsum(0).le(capacity);
  } else {
    const Tensor order =
        std::get<1>(table(routing.weights.detach()).sort(/*stable=*/true, 0, /*descending=*/true));
    const Tensor first = order.narrow(0, 0, capacity);
    kept = at::zeros({tokens, experts}, choices.options().dtype(at::kBool));
    kept.scatter_(0, first, at::ones_like(first, kept.options()));
  }
  return kept.gather(1, choices);
}

void Router::limit(Routing& routing, const Spread& spread, StepContext& context) const {
  const at::NoGradGuard no_grad;
  const Mesh& mesh = context.mesh();
  const int64_t own = routing.choices.size(0);
  const double share =
      static_cast<double>(own * spread.ranks * spec_.chosen) / static_cast<double>(spec_.experts);
  routing.capacity = static_cast<int64_t>(std::ceil(share * *spec_.capacity));
  Tensor kept;
  if (spread.seq.empty()) {
    kept = kept_choices(routing, spec_.experts, routing.capacity, spec_.drop_by_position);
  } else {
    // All tokens of the microbatch, in the order of the sample, on each rank that has some.
    const auto cut = [&](Tensor x) { // to this rank's tokens, where they are cut behind the model's
      for (auto axis = spread.seq.rbegin(); axis != spread.seq.rend(); ++axis) {
        x = spread.partial[*axis].type == PlacementType::partial ? mesh.group(*axis).slice(x, 0)
                                                                 : x;
      }
      return x;
    };
    const auto gathered = [&](Tensor x) {
      for (const auto axis : spread.seq) {
        x = mesh.group(axis).all_gather(x.contiguous(), 0);
      }
      return x;
    };
    const Tensor index = cut(context.token_index());
    const int64_t length = index.size(0);
    const Tensor order = std::get<1>(gathered(index).sort());
    const auto in_order = [&](const Tensor& x) {
      const Tensor all = gathered(x.view({length, -1}));
      return all.index_select(0, order).view({-1, spec_.chosen});
    };
    const Routing all{in_order(routing.choices), in_order(routing.weights.detach())};
    kept = kept_choices(all, spec_.experts, routing.capacity, spec_.drop_by_position);
    kept = kept.view({order.size(0), -1}).index_select(0, index).view({own, spec_.chosen});
  }
  const Tensor dropped = kept.bitwise_not();
  const Tensor number = dropped.sum(routing.weights.scalar_type());
  const double choices = static_cast<double>(own * spread.ranks * spec_.chosen);
  context.add_loss(
      {"dropped share",
       spread.total(number, mesh) / (choices * static_cast<double>(spec_.layers)),
       "",
       /*weight=*/0}
  );
  routing.choices = routing.choices.masked_fill(dropped, -1);
  {
    const at::AutoGradMode grad(routing.weights.requires_grad());
    routing.weights = routing.weights.masked_fill(dropped, 0);
  }
}

} // namespace mh
