// Mixtures of experts against a loop over experts in plain ATen.

#include "megahost/nn/experts.hpp"

#include "core/memory/caching_allocator.hpp"
#include "core/model/recompute.hpp"
#include "megahost/error.hpp"
#include "megahost/gradients.hpp"
#include "tests/nn/bench.hpp"
#include "tests/nn/gradient.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/zeros_like.h>

#include <doctest/doctest.h>

#include <map>

using namespace mh;
using mh::test::Bench;
using mh::test::filled;
using mh::test::hold_against;
using mh::test::leaves;

namespace {

constexpr int64_t kWidth = 6, kHidden = 5, kExperts = 4;
constexpr Axis kEmbed{axis::embed, kWidth};

MixtureSpec small(ActivationKind activation = ActivationKind::swiglu) {
  MixtureSpec spec{
      .router = {.embed = kEmbed, .experts = kExperts, .std = 1},
      .hidden = kHidden,
      .activation = activation,
      .std = 0.5,
      .out_std = 0.5};
  return spec;
}

/// A mixture's result by a dense loop: for each expert all tokens, weighted by 0 where they chose
/// others.
at::Tensor dense_loop(
    const std::map<std::string, at::Tensor>& weights, const MixtureSpec& spec, const at::Tensor& x
) {
  const auto plus = [&](const at::Tensor& y, const std::string& bias, at::ArrayRef<int64_t> at) {
    if (!spec.bias) {
      return y;
    }
    at::Tensor added = weights.at(bias);
    for (const int64_t index : at) {
      added = added[index];
    }
    return y + added;
  };
  at::Tensor logits = x.matmul(weights.at("router.weight").t());
  logits = spec.router.logit_bias ? logits + weights.at("router.logit_bias") : logits;
  const auto [routing, scores] = choose_experts(spec.router, logits.view({-1, kExperts}), {});
  const at::Tensor share = at::zeros_like(logits.view({-1, kExperts}))
                               .scatter_add(1, routing.choices, routing.weights)
                               .view(logits.sizes());
  at::Tensor sum = at::zeros_like(x);
  for (int64_t e = 0; e < kExperts; ++e) {
    at::Tensor wide;
    if (spec.activation.gated()) {
      const at::Tensor gate_up = weights.at("experts.gate_up.weight")[e];
      wide = at::silu(plus(x.matmul(gate_up[0].t()), "experts.gate_up.bias", {e, 0})) *
             plus(x.matmul(gate_up[1].t()), "experts.gate_up.bias", {e, 1});
    } else {
      const at::Tensor up = x.matmul(weights.at("experts.up.weight")[e].t());
      wide = at::gelu(plus(up, "experts.up.bias", {e}));
    }
    const at::Tensor down = wide.matmul(weights.at("experts.down.weight")[e].t());
    sum = sum + plus(down, "experts.down.bias", {e}) * share.select(2, e).unsqueeze(2);
  }
  if (spec.shared) {
    const auto part = [&](const char* name, const at::Tensor& in) {
      const std::string prefix = std::string("shared.") + name;
      return plus(in.matmul(weights.at(prefix + ".weight").t()), prefix + ".bias", {});
    };
    const at::Tensor shared = part("down", at::silu(part("gate", x)) * part("up", x));
    sum = sum + x.matmul(weights.at("shared_gate.weight").t()).sigmoid() * shared;
  }
  return sum;
}

void hold_against_loop(const MixtureSpec& spec, const Keep& keep = {}) {
  Bench bench;
  const MixtureOfExperts mixture(bench.builder, spec);
  Gradients gradients(bench.store, bench.mesh);
  for (auto& parameter : bench.store.all()) { // biases begin as 0
    const auto& name = parameter.pieces.front().name;
    if (name.ends_with("bias")) {
      parameter.value.detach().copy_(filled(parameter.value.sizes().vec(), name.c_str()));
    }
  }
  auto context = bench.context();
  const auto plan = context.keeping(keep);
  hold_against(
      bench,
      kWidth,
      [&](const at::Tensor& x) { return mixture.forward(x, context); },
      [&](const auto& weights, const at::Tensor& x) { return dense_loop(weights, spec, x); }
  );
}

/// Bytes that a forward pass keeps for its backward.
int64_t kept_bytes(const MixtureSpec& spec, const Keep& keep) {
  Bench bench;
  const MixtureOfExperts mixture(bench.builder, spec);
  const at::Tensor x = filled({5, 2, kWidth}, "x").requires_grad_();
  auto context = bench.context();
  const auto plan = context.keeping(keep);
  const int64_t before = allocator_counts().used_bytes;
  const at::Tensor y = mixture.forward(x, context);
  return allocator_counts().used_bytes - before;
}

} // namespace

TEST_CASE("a mixture is the loop over its experts, gradients too") {
  hold_against_loop(small());
  hold_against_loop(small(ActivationKind::gelu));
  auto spec = small();
  spec.router.chosen = 4;
  hold_against_loop(spec);
  spec.router.chosen = 1;
  spec.router.score = RouterScore::softmax_topk;
  hold_against_loop(spec);
}

TEST_CASE("biases of router, experts and the shared feed-forward are added once") {
  for (const auto activation : {ActivationKind::swiglu, ActivationKind::gelu}) {
    auto spec = small(activation);
    spec.bias = true;
    spec.router.logit_bias = true;
    hold_against_loop(spec);
    if (activation == ActivationKind::swiglu) {
      spec.shared = 7;
      spec.shared_gate = true;
      hold_against_loop(spec);
    }
  }
}

TEST_CASE("activations that are computed again are not kept for the experts that read them") {
  install_caching_allocator();
  const Keep light{.redo = {"activations"}};
  hold_against_loop(small(), light);
  const int64_t rows = 5 * 2 * small().router.chosen;
  CHECK(kept_bytes(small(), {}) - kept_bytes(small(), light) == rows * kHidden * 8);
}

TEST_CASE("a shared feed-forward with a gate is added") {
  auto spec = small();
  spec.shared = 7;
  spec.shared_gate = true;
  hold_against_loop(spec);
}

TEST_CASE("float32 is within 1e-6 of the loop") {
  Mesh mesh;
  Rules rules;
  ParameterStore store;
  Builder builder(store, {.mesh = &mesh, .rules = &rules, .seq = 5, .microbatch = 2});
  const MixtureOfExperts mixture(builder, small());
  const Batch batch{.arrays = {}, .samples = {0, 1}, .seq = 5, .batch = 2};
  StepContext context(mesh, rules, batch);
  const at::Tensor x = filled({5, 2, kWidth}, "x").to(at::kFloat);
  const at::NoGradGuard no_grad;
  const at::Tensor expected = dense_loop(leaves(store), small(), x);
  const double distance = (mixture.forward(x, context) - expected).norm().item<double>();
  CHECK(distance <= 1e-6 * expected.norm().item<double>());
}

TEST_CASE("capacity padded or not is the same, and recomputing drops the same tokens") {
  const auto run = [](bool pad, bool again) {
    Bench bench;
    auto spec = small();
    spec.router.capacity = 0.6;
    spec.pad = pad;
    const MixtureOfExperts mixture(bench.builder, spec);
    Gradients gradients(bench.store, bench.mesh);
    const at::Tensor x = filled({5, 2, kWidth}, "x").requires_grad_();
    auto context = bench.context();
    const Keep keep{
        .everything = true,
        .redo = again ? std::vector<std::string>{"mlp"} : std::vector<std::string>{}};
    const auto plan = context.keeping(keep);
    const at::Tensor y =
        context.part("mlp", {x}, [&](const auto& in) { return mixture.forward(in[0], context); });
    at::Tensor total = y.square().sum();
    for (const auto& loss : context.losses()) {
      total = loss.weight > 0 ? total + loss.sum * loss.weight : total;
    }
    CHECK(context.losses().size() == 3); // balance, imbalance, dropped share
    torch::autograd::backward({total}, {});
    std::vector<at::Tensor> found{y.detach(), x.grad()};
    for (const auto& parameter : bench.store.all()) {
      found.push_back(parameter.main_grad);
    }
    return found;
  };
  const auto plain = run(false, false);
  for (const auto& other : {run(true, false), run(false, true), run(true, true)}) {
    for (size_t i = 0; i < plain.size(); ++i) {
      CAPTURE(i);
      CHECK((other[i] - plain[i]).norm().item<double>() <= 1e-13 * plain[i].norm().item<double>());
    }
  }
}

TEST_CASE("on the Meta device experts are evenly busy, or as uneven as is assumed") {
  Mesh mesh;
  Rules rules;
  ParameterStore store;
  Builder builder(
      store, {.mesh = &mesh, .rules = &rules, .device = at::kMeta, .seq = 8, .microbatch = 2}
  );
  auto spec = small();
  spec.router.capacity = 1.0;
  spec.router.sequence = true;
  spec.router.z_weight = 1;
  const MixtureOfExperts mixture(builder, spec);
  Gradients gradients(store, mesh);
  const auto options = at::TensorOptions().device(at::kMeta);
  const Batch batch{
      .arrays = {{"tokens", at::empty({8, 2}, options.dtype(at::kLong))}},
      .samples = {0, 1},
      .seq = 8,
      .batch = 2};
  for (const double imbalance : {1.0, 2.0}) {
    StepContext context(mesh, rules, batch, {.imbalance = imbalance});
    const at::Tensor x = at::empty({8, 2, kWidth}, options).requires_grad_();
    const at::Tensor y = mixture.forward(x, context);
    CHECK(y.sizes() == x.sizes());
    torch::autograd::backward({y.sum() + context.losses().at(1).sum}, {});
    CHECK(x.grad().sizes() == x.sizes());
  }
}

TEST_CASE("rows that do not divide are sharded from the front") {
  CHECK(even_ends(10, 4) == std::vector<int64_t>{0, 3, 6, 8, 10});
  CHECK(even_ends(0, 2) == std::vector<int64_t>{0, 0, 0});
}
