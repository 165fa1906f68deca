#include "core/train/weights.hpp"

#include "megahost/error.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <cmath>
#include <utility>

namespace mh {

Weights::Weights(ParameterStore& store, const Optimizer& optimizer, double weight_decay)
    : store_(store)
    , state_(optimizer.state()) {
  MH_ASSERT(store.gradients().defined(), "gradients are allocated before the masters");
  const at::NoGradGuard no_grad;
  for (const auto& parameter : store.all()) {
    const auto dtype = parameter.value.scalar_type();
    const bool copy = dtype != at::kFloat && dtype != at::kDouble;
    copies_ = copies_ || copy;
    const auto value = parameter.value.detach();
    masters_.push_back(copy ? value.to(at::kFloat) : value);
    for (const auto& piece : parameter.pieces) {
      UpdateItem item;
      item.name = piece.name;
      item.weight = parameter.view(masters_.back(), piece);
      item.gradient = parameter.view(parameter.main_grad, piece);
      item.weight_decay = piece.global_shape.size() >= 2 ? weight_decay : 0;
      for (const auto& spec : state_) {
        item.state.push_back(at::zeros_like(item.weight, item.weight.options().dtype(spec.dtype)));
      }
      items_.push_back(std::move(item));
      pieces_.push_back(&piece);
    }
  }
}

void Weights::update(const Optimizer& optimizer, const Update& update) {
  const at::NoGradGuard no_grad;
  optimizer.update(items_, update);
  publish();
}

void Weights::publish() {
  if (!copies_) {
    return;
  }
  const at::NoGradGuard no_grad;
  auto master = masters_.begin();
  for (auto& parameter : store_.all()) {
    parameter.value.detach().copy_(*master++);
  }
}

std::vector<Weights::Stored> Weights::stored() const {
  std::vector<Stored> all;
  for (size_t i = 0; i < items_.size(); ++i) {
    all.push_back({items_[i].name, pieces_[i], items_[i].weight});
  }
  for (size_t s = 0; s < state_.size(); ++s) {
    for (size_t i = 0; i < items_.size(); ++i) {
      all.push_back(
          {"optimizer." + state_[s].name + "." + items_[i].name, pieces_[i], items_[i].state[s]}
      );
    }
  }
  return all;
}

bool Weights::finite() const {
  return std::all_of(items_.begin(), items_.end(), [](const auto& item) {
    return std::isfinite(item.weight.abs().max().template item<double>());
  });
}

int64_t Weights::bytes() const {
  int64_t bytes = 0;
  if (copies_) {
    for (const auto& master : masters_) {
      bytes += static_cast<int64_t>(master.nbytes());
    }
  }
  for (const auto& item : items_) {
    for (const auto& state : item.state) {
      bytes += static_cast<int64_t>(state.nbytes());
    }
  }
  return bytes;
}

} // namespace mh
