#include "core/step/weights.hpp"

#include "core/model/plugin_call.hpp"
#include "core/step/parameter_groups.hpp"
#include "megahost/error.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/util/accumulate.h>

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

/// A tensor in host memory. In a plan on the Meta device it takes none of the device's.
at::Tensor on_host(const at::Tensor& tensor, at::ScalarType dtype) {
  if (tensor.is_meta()) {
    at::Tensor host = at::empty({0}, tensor.options().dtype(dtype));
    host.unsafeGetTensorImpl()->set_sizes_contiguous(tensor.sizes());
    return host;
  }
  return tensor.to(at::kCPU, dtype, /*non_blocking=*/false, /*copy=*/true);
}

/// The sum over the ranks that split a piece; of those that hold the same slice the first counts.
std::function<at::Tensor(const at::Tensor&)> summer(const Piece& piece, const Mesh& mesh) {
  return [&piece, &mesh](const at::Tensor& part) {
    const bool first = std::ranges::all_of(piece.shards, [&](const Shards& shards) {
      return mesh.group(shards.axis).index() % shards.inner == 0;
    });
    const at::Tensor sum = first ? part.clone() : at::zeros_like(part);
    for (const auto& shards : piece.shards) {
      mesh.group(shards.axis).all_reduce(sum);
    }
    return sum;
  };
}

/// The global tensor of a piece from the slices of the ranks that split it.
std::function<at::Tensor(const at::Tensor&)> gatherer(const Piece& piece, const Mesh& mesh) {
  return [&piece, sum = summer(piece, mesh)](const at::Tensor& part) {
    const at::Tensor whole = at::zeros(piece.global_shape, part.options());
    if (part.numel() > 0) {
      at::Tensor own = whole;
      for (size_t d = 0; d < piece.shape.size(); ++d) {
        own = own.narrow(static_cast<int64_t>(d), piece.offset[d], piece.shape[d]);
      }
      own.copy_(part);
    }
    return sum(whole);
  };
}

/// A state of its own shape: whole, or without elements on ranks that leave it to another.
Piece state_piece(const Piece& parameter, const std::vector<int64_t>& shape, bool here) {
  Piece piece;
  piece.name = parameter.name;
  piece.global_shape = shape;
  piece.offset.assign(shape.size(), 0);
  piece.shape = shape;
  if (!here) {
    piece.shape.front() = 0;
  }
  return piece;
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

namespace {

std::vector<OwnedPiece> with_rows(std::vector<OwnedPiece> owned, const WeightOptions::Rows& rows) {
  for (OwnedPiece& one : owned) {
    Piece& piece = one.piece;
    if (rows.count == 1 || piece.shape[0] % rows.count != 0) {
      continue;
    }
    const int64_t count = piece.shape[0] / rows.count, first = rows.index * count;
    piece.row += first;
    piece.offset[0] += first;
    piece.shape[0] = count;
    one.gradient = one.gradient.narrow(0, first, count);
    one.value = one.value.narrow(0, first, count);
  }
  return owned;
}

} // namespace

Weights::Weights(
    const Gradients& gradients, const Optimizer& optimizer, const WeightOptions& options
)
    : optimizer_(optimizer)
    , options_(options)
    , weight_decay_(options.weight_decay)
    , owned_(with_rows(gradients.owned(), options.rows)) {
  const auto& store = gradients.parameters();
  offload_ = options.offload && !store.all().empty() && !store.all().front().value.is_cpu();
  const at::NoGradGuard no_grad;
  for (const auto& one : owned_) {
    add(one);
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
  const bool others = optimizer_.keeps_other_weights();
  if (!offload_ && !others && (is_float(own) || !options_.masters)) {
    return {value, owned.gradient, {}};
  }
  const auto type = is_float(own) || !options_.masters ? own : at::kFloat;
  Held held{{}, owned.gradient, value};
  if (!offload_) {
    held.master = value.to(type, /*non_blocking=*/false, /*copy=*/true);
  } else {
    held.master = on_host(value, type);
    held.gradient = on_host(owned.gradient, owned.gradient.scalar_type());
    held.rounded = type == own && !others ? at::Tensor() : on_host(value, own);
    held_bytes_ +=
        tensor_bytes(held.gradient) + (held.rounded.defined() ? tensor_bytes(held.rounded) : 0);
  }
  held_bytes_ += tensor_bytes(held.master);
  return held;
}

at::Tensor Weights::zeros(
    const std::vector<int64_t>& shape, at::ScalarType dtype, const at::Tensor& weight
) const {
  if (offload_ && weight.is_meta()) {
    return on_host(at::empty(shape, weight.options()), dtype);
  }
  return at::zeros(shape, weight.options().dtype(dtype));
}

/// Whether this rank holds the states of a parameter that one of the ranks that split it holds: the
/// one with the fewest elements so far. Where ranks have the same slice the first counts, as in `sum`.
bool Weights::holds_states(const Piece& piece, int64_t elements) {
  if (elements == 0 || piece.shards.empty() || options_.mesh == nullptr) {
    return true;
  }
  std::string axes;
  std::vector<int64_t> candidates{0};
  int64_t own = 0, ranks = 1;
  for (const auto& shards : piece.shards) {
    const auto& group = options_.mesh->group(shards.axis);
    std::vector<int64_t> finer;
    for (const int64_t outer : candidates) {
      for (int64_t i = 0; i < group.size(); i += shards.inner) {
        finer.push_back(outer * group.size() + i);
      }
    }
    candidates = std::move(finer);
    own = own * group.size() + group.index();
    ranks *= group.size();
    axes += std::string(to_string(shards.axis)) + " ";
  }
  auto& held = states_held_[axes];
  held.resize(static_cast<size_t>(ranks), 0);
  const int64_t least = std::ranges::min(candidates, {}, [&](int64_t rank) {
    return held[static_cast<size_t>(rank)];
  });
  held[static_cast<size_t>(least)] += elements;
  return own == least;
}

void Weights::add_state(const Piece& piece, const StateSpec& spec, bool here, UpdateItem& item) {
  const bool exact = item.weight.scalar_type() == at::kDouble;
  const auto dtype = exact && spec.dtype == at::kFloat ? at::kDouble : spec.dtype;
  const Piece* own = &piece;
  if (!spec.shape.empty()) {
    own = &state_pieces_.emplace_back(state_piece(piece, spec.shape, here || !spec.on_one_rank));
  }
  item.state.push_back(zeros(own->shape, dtype, item.weight));
  held_bytes_ += tensor_bytes(item.state.back());
  stored_.push_back({"optimizer." + spec.name + "." + piece.name, own, item.state.back()});
}

void Weights::add(const OwnedPiece& owned) {
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
    item.sum = summer(piece, *options_.mesh);
  }
  const auto specs = optimizer_.state_of(piece.name, piece.global_shape);
  int64_t elements = 0;
  for (const auto& spec : specs) {
    elements += spec.on_one_rank ? c10::multiply_integers(spec.shape) : 0;
  }
  const bool here = holds_states(piece, elements);
  for (const auto& spec : specs) {
    add_state(piece, spec, here, item);
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
    in_plugin(optimizer, "set_parameters", [&] { optimizer.set_parameters(items_); });
    for (auto& item : items_) {
      item.gradient.zero_();
    }
  }
  for (auto& gradient : unused_gradients_) {
    gradient.zero_();
  }
  copy_to_device();
  for (size_t i = 0; offload_ && i < held_.size(); ++i) {
    owned_[i].gradient.zero_();
  }
}

/// Parameters take what the host has computed, where weights are offloaded.
void Weights::copy_to_device() {
  for (size_t i = 0; offload_ && i < held_.size(); ++i) {
    owned_[i].value.copy_(held_[i].rounded.defined() ? held_[i].rounded : held_[i].master);
  }
}

void Weights::publish() {
  const at::NoGradGuard no_grad;
  if (!optimizer_.keeps_other_weights()) {
    publish_masters();
    return;
  }
  in_plugin(optimizer_, "set_parameters", [&] { optimizer_.set_parameters(items_); });
  copy_to_device();
}

void Weights::publish_masters() {
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < held_.size(); ++i) {
    if (held_[i].rounded.defined() || offload_) {
      owned_[i].value.copy_(held_[i].master);
    }
  }
}

bool Weights::finite() const {
  return std::all_of(items_.begin(), items_.end(), [](const auto& item) {
    return item.weight.numel() == 0 ||
           std::isfinite(item.weight.abs().max().template item<double>());
  });
}

} // namespace mh
