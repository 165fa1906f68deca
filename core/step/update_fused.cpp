// The SDK's face of the operator `megahost::update_`.

#include "core/kernels/ops.hpp"
#include "core/kernels/update.hpp"
#include "megahost/optimizer.hpp"
#include "megahost/random.hpp"

#include <array>

namespace mh {

namespace {

UpdateKind kind_of(UpdateRule::Kind kind) {
  switch (kind) {
  case UpdateRule::Kind::adam:
    return UpdateKind::adam;
  case UpdateRule::Kind::sgd:
    return UpdateKind::sgd;
  case UpdateRule::Kind::average:
    break;
  }
  return UpdateKind::average;
}

void add(const UpdateRule& rule, UpdateItem& item, const Update& update, ops::UpdateTensors& all) {
  all.weights.push_back(item.weight);
  all.gradients.push_back(item.gradient);
  if (rule.kind != UpdateRule::Kind::sgd || rule.beta1 > 0) {
    all.first.push_back(item.state.at(0));
  }
  if (rule.kind == UpdateRule::Kind::adam) {
    all.second.push_back(item.state.at(1));
  }
  if (item.parameter.defined()) {
    all.parameters.push_back(item.parameter);
  }
  all.rates.push_back(update.lr * item.lr_multiplier);
  all.decays.push_back(item.weight_decay);
  if (!rule.stochastic_rounding) {
    return;
  }
  all.keys.push_back(static_cast<int64_t>(random_key(update.seed, item.name)));
  const bool whole = item.global_shape.empty();
  const auto shape = whole ? item.weight.sizes().vec() : item.global_shape;
  const auto offset = whole ? std::vector<int64_t>(shape.size(), 0) : item.offset;
  all.places.push_back(static_cast<int64_t>(shape.size()));
  all.places.insert(all.places.end(), shape.begin(), shape.end());
  all.places.insert(all.places.end(), offset.begin(), offset.end());
}

} // namespace

void update_fused(const UpdateRule& rule, std::span<UpdateItem> items, const Update& update) {
  ops::ensure_registered();
  std::array<ops::UpdateTensors, 2> all; // without and with a parameter to write
  for (auto& item : items) {
    if (item.weight.numel() == 0) {
      continue; // a rank's part of a vocabulary that ends before it
    }
    add(rule, item, update, all.at(item.parameter.defined() ? 1 : 0));
  }
  for (auto& tensors : all) {
    ops::update_(
        {.kind = kind_of(rule.kind),
         .decoupled = rule.decoupled,
         .nesterov = rule.nesterov,
         .stochastic = rule.stochastic_rounding,
         .beta1 = rule.beta1,
         .beta2 = rule.beta2,
         .eps = rule.eps,
         .scale = update.gradient_scale,
         .step = update.step},
        tensors
    );
  }
}

} // namespace mh
