// A mixture of experts made of the SDK's layers and conversions: the expert mesh lies over the same
// ranks as the dense one, and router and experts get the gradients of one rank.

#include "core/mesh/threads.hpp"
#include "megahost/builder.hpp"
#include "megahost/checking.hpp"
#include "megahost/context.hpp"
#include "megahost/gradients.hpp"
#include "megahost/model.hpp"
#include "megahost/nn/linear.hpp"
#include "megahost/random.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/zeros_like.h>

#include <doctest/doctest.h>

#include <map>
#include <mutex>

namespace experts_tests {

using namespace mh;

namespace {

constexpr int64_t kSeq = 8, kBatch = 4, kEmbed = 12, kExperts = 4, kHidden = 6;
constexpr Axis kEmbedAxis{axis::embed, kEmbed};

/// Each token goes to its two best experts, weighted by the router's softmax.
class Mixture {
public:
  explicit Mixture(Builder& builder)
      : placed_(builder.place(kEmbedAxis))
      , router_(
            builder,
            {.in = kEmbedAxis,
             .outs = {{"router", {{"choice"}, kExperts}}},
             .bias = true,
             .std = 0.5}
        ) {
    // Tokens are sharded over all ranks of a stage; an expert's are gathered from those of ep, so
    // what its weights meet is split over edp alone.
    Placement seen;
    seen[MeshAxis::edp] = {PlacementType::split, 0};
    const Axis experts{axis::expert, kExperts}, hidden{axis::expert_mlp, kHidden};
    up_ = &builder.parameter({{"up", {experts, hidden, kEmbedAxis}, Init::normal(0.5)}}, seen);
    down_ = &builder.parameter({{"down", {experts, kEmbedAxis, hidden}, Init::normal(0.5)}}, seen);
  }

  [[nodiscard]] at::Tensor forward(const at::Tensor& x, StepContext& context) const {
    const Mesh& mesh = context.mesh();
    const at::Tensor logits = router_.forward(x, context);
    const at::Tensor best = std::get<0>(logits.topk(2, -1)).select(-1, 1).unsqueeze(-1);
    const at::Tensor gates = logits.softmax(-1) * logits.ge(best);

    Placement sharded = placed_; // each token on one rank of the stage
    if (mesh.size(MeshAxis::tp) > 1) {
      sharded[MeshAxis::tp] = {PlacementType::split, 0};
    }
    const at::Tensor own = convert(x, placed_, sharded, mesh);
    const at::Tensor tokens = gather(own, mesh);
    const at::Tensor weights = gather(convert(gates, placed_, sharded, mesh), mesh);
    const int64_t local = up_->value.size(0);
    const int64_t first = mesh.coordinate(MeshAxis::ep) * local;
    at::Tensor sum = at::zeros_like(tokens);
    for (int64_t e = 0; e < local; ++e) {
      const at::Tensor wide = at::gelu(at::matmul(tokens, up_->value[e].t()));
      const at::Tensor made = at::matmul(wide, down_->value[e].t());
      sum = sum + made * weights.select(1, first + e).unsqueeze(1);
    }
    const at::Tensor back =
        convert(sum, both(PlacementType::partial), both(PlacementType::split), mesh);
    return convert(back.view_as(own), sharded, placed_, mesh);
  }

private:
  static Placement both(PlacementType type) {
    Placement placement;
    placement[MeshAxis::ep] = {type, 0};
    placement[MeshAxis::etp] = {type, 0};
    return placement;
  }

  /// [seq, batch, n] of this rank -> [tokens, n] of all ranks that share experts.
  static at::Tensor gather(const at::Tensor& x, const Mesh& mesh) {
    return convert(
        x.reshape({-1, x.size(-1)}),
        both(PlacementType::split),
        both(PlacementType::replicated),
        mesh
    );
  }

  Placement placed_;
  Linear router_;
  Parameter *up_, *down_;
};

Rules rules_of(bool sequence) {
  Rules rules;
  rules.features = {{axis::expert, MeshAxis::ep}, {axis::expert_mlp, MeshAxis::etp}};
  rules.tokens = {{axis::batch, MeshAxis::dp}, {axis::seq, MeshAxis::cp}};
  if (sequence) {
    rules.between = {{axis::seq, MeshAxis::tp}};
  }
  return rules;
}

/// Values that depend on the global place only, and this rank's part of them.
at::Tensor random(const char* name, const Placement& placed, const Mesh& mesh) {
  const at::Tensor whole = at::empty({kSeq, kBatch, kEmbed}, at::kDouble);
  fill_normal(whole, random_key(1, name), 1, {kSeq, kBatch, kEmbed}, {0, 0, 0});
  at::Tensor part = whole;
  for (const auto axis : {MeshAxis::dp, MeshAxis::cp, MeshAxis::tp}) { // outer axes first
    if (placed[axis].type == PlacementType::split) {
      part = mesh.group(axis).slice(part, placed[axis].dim);
    }
  }
  return part.contiguous();
}

using NamedGradients = std::map<std::string, at::Tensor>;

NamedGradients run(const MeshShape& shape, bool sequence) {
  NamedGradients result;
  std::mutex mutex;
  run_ranks(shape, [&](const Mesh& mesh) {
    const Rules rules = rules_of(sequence);
    ParameterStore store;
    Builder builder(
        store,
        {.mesh = &mesh,
         .rules = &rules,
         .dtype = at::kDouble,
         .seed = 5,
         .seq = kSeq,
         .microbatch = kBatch}
    );
    const Mixture mixture(builder);
    Gradients gradients(store, mesh);
    const Placement placed = builder.place(kEmbedAxis);
    const at::Tensor x = random("x", placed, mesh).requires_grad_();
    const Batch batch{
        .arrays = {{"tokens", at::ones({kSeq, kBatch}, at::kLong)}},
        .samples = {},
        .seq = kSeq,
        .batch = kBatch};
    StepContext context(mesh, rules, batch, {.checking = true});
    const at::Tensor y = mixture.forward(x, context);
    backward((y * random("target", placed, mesh)).sum());
    gradients.finish();
    check_parameters(store, mesh);
    const double squared = gradients.squared_norm().item().toDouble();

    const std::scoped_lock lock(mutex);
    result["squared norm"] = at::full({}, squared, at::kDouble);
    for (const auto& parameter : store.all()) {
      for (const auto& piece : parameter.pieces) {
        auto& whole = result[piece.name];
        if (!whole.defined()) {
          whole = at::full(piece.global_shape, 1e9, at::kDouble); // what no rank writes shows
        }
        at::Tensor slice = whole;
        for (size_t d = 0; d < piece.shape.size(); ++d) {
          slice = slice.narrow(static_cast<int64_t>(d), piece.offset[d], piece.shape[d]);
        }
        slice.copy_(parameter.view(parameter.main_grad, piece));
      }
    }
  });
  return result;
}

void compare(const NamedGradients& one, const NamedGradients& other) {
  REQUIRE(one.size() == other.size());
  for (const auto& [name, gradient] : one) {
    CAPTURE(name);
    const double size = gradient.norm().item().toDouble();
    CHECK(size > 1e-3);
    CHECK((other.at(name) - gradient).norm().item().toDouble() <= 1e-12 * size);
  }
}

} // namespace

TEST_CASE("expert 2 inside data 2, tensor 2 with expert tensor 1: the router's gradient is exact") {
  const NamedGradients one = run({}, false);
  REQUIRE(one.contains("router.weight"));
  compare(one, run({.dp = 2, .tp = 2, .ep = 2, .etp = 1}, false));
  compare(one, run({.dp = 2, .tp = 2, .ep = 2, .etp = 1}, true));
}

TEST_CASE("experts over other ranks of a stage") {
  const NamedGradients one = run({}, false);
  compare(one, run({.dp = 4, .ep = 2}, false));
  compare(one, run({.dp = 2, .ep = 2}, false));
  compare(one, run({.dp = 4, .ep = 4}, false));
  compare(one, run({.dp = 2, .tp = 2, .ep = 2, .etp = 2}, false));
  compare(one, run({.dp = 2, .tp = 2, .ep = 2, .etp = 2}, true));
  compare(one, run({.dp = 2, .tp = 2, .ep = 4, .etp = 1}, true));
  compare(one, run({.dp = 2, .cp = 2, .ep = 2}, false));
  compare(one, run({.dp = 2, .cp = 2, .tp = 2, .ep = 4, .etp = 2}, true));
}

} // namespace experts_tests
