#include "core/train/weights.hpp"

#include "core/train/parameter_groups.hpp"
#include "megahost/error.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <cmath>
#include <utility>

namespace mh {

namespace {

bool is_float(at::ScalarType dtype) {
  return dtype == at::kFloat || dtype == at::kDouble;
}

int64_t bytes_of(const at::Tensor& tensor) {
  return static_cast<int64_t>(tensor.nbytes());
}

/// A tensor in host memory. That of a plan on the Meta device takes none.
at::Tensor on_host(const at::Tensor& tensor, at::ScalarType dtype) {
  if (tensor.is_meta()) {
    return at::empty({}, tensor.options().dtype(dtype)).expand(tensor.sizes());
  }
  return tensor.to(at::kCPU, dtype, /*non_blocking=*/false, /*copy=*/true);
}

/// The global tensor of a piece from the slices of the ranks that split it.
std::function<at::Tensor(const at::Tensor&)> gatherer(const Piece& piece, const Mesh& mesh) {
  return [&piece, &mesh](const at::Tensor& part) {
    at::Tensor whole = at::zeros(piece.global_shape, part.options());
    bool first = true; // of the ranks that hold this slice
    for (const auto& [axis, inner] : piece.shards) {
      first = first && mesh.group(axis).index() % inner == 0;
    }
    if (first) {
      at::Tensor own = whole;
      for (size_t d = 0; d < piece.shape.size(); ++d) {
        own = own.narrow(static_cast<int64_t>(d), piece.offset[d], piece.shape[d]);
      }
      own.copy_(part);
    }
    for (const auto& shards : piece.shards) {
      mesh.group(shards.axis).all_reduce(whole);
    }
    return whole;
  };
}

} // namespace

WeightOptions weight_options(const Recipe& recipe, const Mesh& mesh) {
  const auto& optimizer = recipe.optimizer;
  return {
      .decay_vectors = optimizer.decay_vectors,
      .masters = optimizer.master_weights,
      .offload = optimizer.offload,
      .groups = optimizer.groups,
      .mesh = &mesh};
}

Weights::Weights(ParameterStore& store, const Optimizer& optimizer, const WeightOptions& options)
    : store_(store)
    , options_(options)
    , offload_(options.offload && !store.all().empty() && !store.all().front().value.is_cpu()) {
  const at::NoGradGuard no_grad;
  for (auto& parameter : store.all()) {
    const Leaf& leaf = leaves_.emplace_back(make_leaf(parameter));
    for (const auto& piece : parameter.pieces) {
      add_piece(leaf, piece, optimizer);
    }
  }
  for (const auto& buffer : store.buffers()) {
    stored_.push_back({buffer.piece.name, &buffer.piece, buffer.value});
  }
  set_weight_decay(options.weight_decay);
  std::stable_sort(stored_.begin(), stored_.end(), [](const Stored& a, const Stored& b) {
    return a.name == a.piece->name && b.name != b.piece->name; // weights come first
  });
}

Weights::Leaf Weights::make_leaf(Parameter& parameter) {
  const auto value = parameter.value.detach();
  const bool trained = parameter.value.requires_grad();
  MH_ASSERT(
      !trained || parameter.main_grad.defined(), "gradients are allocated before the masters"
  );
  const bool copy = trained && (offload_ || (options_.masters && !is_float(value.scalar_type())));
  if (!copy) {
    return {&parameter, value, parameter.main_grad, {}};
  }
  const auto type =
      is_float(value.scalar_type()) || !options_.masters ? value.scalar_type() : at::kFloat;
  Leaf leaf{&parameter, {}, parameter.main_grad, value};
  if (!offload_) {
    leaf.master = value.to(type);
  } else {
    leaf.master = on_host(value, type);
    leaf.gradient = on_host(parameter.main_grad, parameter.main_grad.scalar_type());
    leaf.rounded = type == value.scalar_type() ? at::Tensor() : on_host(value, value.scalar_type());
    held_ += bytes_of(leaf.gradient) + (leaf.rounded.defined() ? bytes_of(leaf.rounded) : 0);
  }
  held_ += bytes_of(leaf.master);
  return leaf;
}

at::Tensor Weights::zeros_like(const at::Tensor& weight, at::ScalarType dtype) const {
  return offload_ && weight.is_meta() ? on_host(weight, dtype)
                                      : at::zeros_like(weight, weight.options().dtype(dtype));
}

void Weights::add_piece(const Leaf& leaf, const Piece& piece, const Optimizer& optimizer) {
  const Parameter& parameter = *leaf.parameter;
  const auto weight = parameter.view(leaf.master, piece);
  stored_.push_back({piece.name, &piece, weight});
  if (piece.frozen) {
    if (parameter.main_grad.defined()) {
      unused_gradients_.push_back(parameter.view(parameter.main_grad, piece));
    }
    return;
  }
  const auto factors = factors_of(options_.groups, piece.name);
  UpdateItem item;
  item.name = piece.name;
  item.weight = weight;
  item.gradient = parameter.view(leaf.gradient, piece);
  item.lr_multiplier = factors.lr;
  if (leaf.rounded.defined()) {
    item.parameter = parameter.view(leaf.rounded, piece);
  }
  item.global_shape = piece.global_shape;
  item.offset = piece.offset;
  if (!piece.shards.empty() && options_.mesh != nullptr) {
    item.gather = gatherer(piece, *options_.mesh);
  }
  for (const auto& spec : optimizer.state_of(piece.name, piece.global_shape)) {
    item.state.push_back(zeros_like(weight, spec.dtype));
    held_ += bytes_of(item.state.back());
    stored_.push_back({"optimizer." + spec.name + "." + piece.name, &piece, item.state.back()});
  }
  items_.push_back(std::move(item));
  const bool decays = options_.decay_vectors || piece.global_shape.size() >= 2;
  decays_.push_back(decays ? factors.decay : 0);
}

void Weights::set_weight_decay(double weight_decay) {
  for (size_t i = 0; i < items_.size(); ++i) {
    items_[i].weight_decay = weight_decay * decays_[i];
  }
}

void Weights::update(const Optimizer& optimizer, const Update& update) {
  const at::NoGradGuard no_grad;
  for (auto& leaf : leaves_) {
    if (offload_ && leaf.gradient.defined()) {
      leaf.gradient.copy_(leaf.parameter->main_grad);
    }
  }
  optimizer.update(items_, update);
  if (!optimizer.finishes()) {
    for (auto& item : items_) {
      if (item.parameter.defined()) {
        item.parameter.copy_(item.weight);
      }
      item.gradient.zero_();
    }
  }
  for (auto& gradient : unused_gradients_) {
    gradient.zero_();
  }
  for (auto& leaf : leaves_) {
    if (offload_ && leaf.gradient.defined()) {
      leaf.parameter->value.detach().copy_(leaf.rounded.defined() ? leaf.rounded : leaf.master);
      leaf.parameter->main_grad.zero_();
    }
  }
}

void Weights::publish() {
  const at::NoGradGuard no_grad;
  for (auto& leaf : leaves_) {
    if (leaf.rounded.defined() || (offload_ && leaf.gradient.defined())) {
      leaf.parameter->value.detach().copy_(leaf.master);
    }
  }
}

bool Weights::finite() const {
  return std::all_of(items_.begin(), items_.end(), [](const auto& item) {
    return std::isfinite(item.weight.abs().max().template item<double>());
  });
}

} // namespace mh
