#include "core/step/weights.hpp"

#include "core/model/plugin_call.hpp"
#include "core/step/parameter_groups.hpp"
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

int64_t tensor_bytes(const at::Tensor& tensor) {
  return static_cast<int64_t>(tensor.nbytes());
}

/// A tensor in host memory. That of a plan on the Meta device takes none of the device's.
at::Tensor on_host(const at::Tensor& tensor, at::ScalarType dtype) {
  if (tensor.is_meta()) {
    at::Tensor host = at::empty({0}, tensor.options().dtype(dtype));
    host.unsafeGetTensorImpl()->set_sizes_contiguous(tensor.sizes());
    return host;
  }
  return tensor.to(at::kCPU, dtype, /*non_blocking=*/false, /*copy=*/true);
}

/// The global tensor of a piece from the slices of the ranks that split it.
std::function<at::Tensor(const at::Tensor&)> gatherer(const Piece& piece, const Mesh& mesh) {
  return [&piece, &mesh](const at::Tensor& part) {
    at::Tensor whole = at::zeros(piece.global_shape, part.options());
    bool first = true; // this rank is the first of those that hold this slice
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

Weights::Weights(
    const Gradients& gradients, const Optimizer& optimizer, const WeightOptions& options
)
    : options_(options)
    , weight_decay_(options.weight_decay)
    , owned_(gradients.owned()) {
  const auto& store = gradients.parameters();
  offload_ = options.offload && !store.all().empty() && !store.all().front().value.is_cpu();
  const at::NoGradGuard no_grad;
  for (const auto& one : owned_) {
    add(one, optimizer);
  }
  for (const auto& parameter : store.all()) {
    for (const auto& piece : parameter.pieces) {
      if (piece.frozen) {
        stored_.push_back({piece.name, &piece, parameter.view(parameter.value.detach(), piece)});
        if (parameter.main_grad.defined()) {
          unused_gradients_.push_back(parameter.view(parameter.main_grad, piece));
        }
      }
    }
  }
  for (const auto& buffer : store.buffers()) {
    stored_.push_back({buffer.piece.name, &buffer.piece, buffer.value});
  }
  std::stable_sort(stored_.begin(), stored_.end(), [](const Stored& a, const Stored& b) {
    return a.name == a.piece->name && b.name != b.piece->name; // weights come first
  });
}

Weights::Held Weights::hold(const OwnedPiece& owned) {
  const auto& value = owned.value;
  const auto own = value.scalar_type();
  if (!offload_ && (is_float(own) || !options_.masters)) {
    return {value, owned.gradient, {}};
  }
  const auto type = is_float(own) || !options_.masters ? own : at::kFloat;
  Held held{{}, owned.gradient, value};
  if (!offload_) {
    held.master = value.to(type);
  } else {
    held.master = on_host(value, type);
    held.gradient = on_host(owned.gradient, owned.gradient.scalar_type());
    held.rounded = type == own ? at::Tensor() : on_host(value, own);
    held_bytes_ +=
        tensor_bytes(held.gradient) + (held.rounded.defined() ? tensor_bytes(held.rounded) : 0);
  }
  held_bytes_ += tensor_bytes(held.master);
  return held;
}

at::Tensor Weights::zeros_like(const at::Tensor& weight, at::ScalarType dtype) const {
  return offload_ && weight.is_meta() ? on_host(weight, dtype)
                                      : at::zeros_like(weight, weight.options().dtype(dtype));
}

void Weights::add(const OwnedPiece& owned, const Optimizer& optimizer) {
  const Piece& piece = owned.piece;
  const Held& held = held_.emplace_back(hold(owned));
  stored_.push_back({piece.name, &piece, held.master});
  const auto factors = factors_of(options_.groups, piece.name);
  UpdateItem item;
  item.name = piece.name;
  item.weight = held.master;
  item.gradient = held.gradient;
  item.lr_multiplier = factors.lr;
  item.parameter = held.rounded;
  item.global_shape = piece.global_shape;
  item.offset = piece.offset;
  if (!piece.shards.empty() && options_.mesh != nullptr) {
    item.gather = gatherer(piece, *options_.mesh);
  }
  const bool exact = item.weight.scalar_type() == at::kDouble;
  for (const auto& spec : optimizer.state_of(piece.name, piece.global_shape)) {
    const auto dtype = exact && spec.dtype == at::kFloat ? at::kDouble : spec.dtype;
    item.state.push_back(zeros_like(item.weight, dtype));
    held_bytes_ += tensor_bytes(item.state.back());
    stored_.push_back({"optimizer." + spec.name + "." + piece.name, &piece, item.state.back()});
  }
  items_.push_back(std::move(item));
  // Experts' biases are matrices, one row per expert; they count as vectors.
  const bool vector = piece.global_shape.size() < 2 || piece.name.ends_with(".bias");
  const bool decays = options_.decay_vectors || !vector;
  decays_.push_back(decays ? factors.decay : 0);
}

void Weights::update(const Optimizer& optimizer, const Update& update) {
  const at::NoGradGuard no_grad;
  for (size_t i = 0; offload_ && i < held_.size(); ++i) {
    held_[i].gradient.copy_(owned_[i].gradient);
  }
  const bool tensors = optimizer.takes_tensors() && !offload_;
  const auto given = [tensors](const Number& number) {
    return tensors ? number : Number(number.read());
  };
  const Number weight_decay = given(weight_decay_);
  for (size_t i = 0; i < items_.size(); ++i) {
    items_[i].weight_decay = weight_decay * decays_[i];
  }
  const Update numbers{
      .step = given(update.step),
      .lr = given(update.lr),
      .gradient_scale = given(update.gradient_scale),
      .seed = update.seed};
  in_plugin(optimizer, "update", [&] { optimizer.update(items_, numbers); });
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
  for (size_t i = 0; offload_ && i < held_.size(); ++i) {
    owned_[i].value.copy_(held_[i].rounded.defined() ? held_[i].rounded : held_[i].master);
    owned_[i].gradient.zero_();
  }
}

void Weights::publish() {
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < held_.size(); ++i) {
    if (held_[i].rounded.defined() || offload_) {
      owned_[i].value.copy_(held_[i].master);
    }
  }
}

bool Weights::finite() const {
  return std::all_of(items_.begin(), items_.end(), [](const auto& item) {
    return std::isfinite(item.weight.abs().max().template item<double>());
  });
}

} // namespace mh
