// Whether an optimizer updates tensors that ranks have split as it updates whole ones.

#include "core/conformance/instance.hpp"
#include "core/conformance/tests.hpp"
#include "core/mesh/threads.hpp"
#include "core/step/weights.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/zeros.h>
#include <c10/util/accumulate.h>

#include <array>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace mh::check {

namespace {

/// A way in which ranks share the tensors of a model.
struct Sharing {
  const char* description;
  MeshShape shape;
  int64_t zero;
};

using Whole = std::map<std::string, at::Tensor>; // by name

/// A wave over a tensor of this shape, another one for each name and step.
at::Tensor wave(const Piece& piece, int64_t step) {
  const int64_t elements = c10::multiply_integers(piece.global_shape);
  const double phase = static_cast<double>(step) + static_cast<double>(piece.name.size());
  return (at::arange(elements, at::kFloat) * 1.7 + phase).sin().view(piece.global_shape);
}

/// The slice of a whole tensor that a piece is.
at::Tensor slice_of(at::Tensor whole, const Piece& piece) {
  for (size_t d = 0; d < piece.shape.size(); ++d) {
    whole = whole.narrow(static_cast<int64_t>(d), piece.offset[d], piece.shape[d]);
  }
  return whole;
}

/// A feed-forward network's parameters, its hidden axis split over tensor ranks.
void add_parameters(ParameterStore& store, const Mesh& mesh, const Rules& rules) {
  const Axis hidden{axis::mlp, 8}, embed{axis::embed, 6};
  Builder builder(store, {.mesh = &mesh, .rules = &rules, .seq = kSeq, .microbatch = kBatch});
  const std::pair<const char*, Dims> all[] = {
      {"layers.0.mlp.up.weight", {hidden, embed}},
      {"layers.0.mlp.up.bias", {hidden}},
      {"layers.0.mlp.down.weight", {embed, hidden}},
      {"layers.0.norm.weight", {embed}}};
  for (const auto& [name, dims] : all) {
    builder.parameter({{name, dims, {}}}, {});
  }
}

/// This rank's part of three updates; writes what it holds into `ret_values`.
void update_on(
    const Mesh& mesh, const Optimizer& optimizer, int64_t zero, Whole& ret_values, std::mutex& mutex
) {
  const at::NoGradGuard no_grad;
  Rules rules;
  rules.features.push_back({axis::mlp, MeshAxis::tp});
  ParameterStore store;
  add_parameters(store, mesh, rules);
  Gradients gradients(store, mesh, {.zero = zero, .unit = optimizer.unit()});
  const auto for_pieces = [&](const auto& run) {
    for (auto& parameter : store.all()) {
      for (const auto& piece : parameter.pieces) {
        run(parameter.view(parameter.value, piece), piece);
      }
    }
  };
  for_pieces([](const at::Tensor& value, const Piece& piece) {
    value.copy_(slice_of(wave(piece, 0), piece));
  });
  Weights weights(gradients, optimizer, {.weight_decay = 0.1, .mesh = &mesh});
  for (int64_t step = 1; step <= 3; ++step) {
    for (const auto& owned : gradients.owned()) {
      owned.gradient.copy_(slice_of(wave(owned.piece, step), owned.piece));
    }
    weights.update(optimizer, {.step = step, .lr = 0.01});
    gradients.share_parameters();
    gradients.wait_for_all();
  }
  for_pieces([&](const at::Tensor& value, const Piece& piece) {
    const std::scoped_lock lock(mutex);
    auto& whole = ret_values[piece.name];
    whole = whole.defined() ? whole : at::zeros(piece.global_shape);
    slice_of(whole, piece).copy_(value);
  });
}

Whole updated(const Case& c, const Sharing& sharing) {
  std::vector<std::unique_ptr<Optimizer>> optimizers; // each rank has its own, as in a run
  for (int64_t rank = 0; rank < sharing.shape.world(); ++rank) {
    optimizers.push_back(make<Optimizer>(c));
  }
  Whole values;
  std::mutex mutex;
  run_ranks(sharing.shape, [&](const Mesh& mesh) {
    const auto& own = *optimizers[static_cast<size_t>(mesh.rank())];
    update_on(mesh, own, sharing.zero, values, mutex);
  });
  return values;
}

} // namespace

void shards_update_alike(const Case& c) {
  constexpr double kRounding = 1e-4; // share of a step: norms are sums in another order
  const Whole whole = updated(c, {"one rank", {}, 0});
  const std::array<Sharing, 3> ways{{
      {"split over two tensor ranks", {.tp = 2}, 0},
      {"sharded over two data ranks by ZeRO-1", {.dp = 2}, 1},
      {"split over two tensor ranks and sharded over two data ranks", {.dp = 2, .tp = 2}, 1},
  }};
  for (const Sharing& way : ways) {
    const Whole shards = updated(c, way);
    for (const auto& [name, value] : whole) {
      Piece piece;
      piece.name = name;
      piece.global_shape = value.sizes().vec();
      const double moved = (value - wave(piece, 0)).norm().item().toDouble();
      const double apart = (value - shards.at(name)).norm().item().toDouble();
      const double most = kRounding * moved + 1e-7 * value.norm().item().toDouble();
      if (!(apart <= most)) {
        fail(
            name + ", " + way.description +
                ", differs after 3 updates from the same tensor on one rank "
                "by " +
                std::to_string(apart) + ", where it has moved by " + std::to_string(moved),
            "an update that looks beyond single elements gathers the tensor with `item.gather` "
            "where that is set, and its `unit()` is Unit::matrix, so that zero shards whole "
            "matrices"
        );
      }
    }
  }
}

} // namespace mh::check
