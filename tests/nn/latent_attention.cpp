// Latent attention against its equations in plain ATen.

#include "megahost/nn/latent_attention.hpp"

#include "megahost/error.hpp"
#include "megahost/gradients.hpp"
#include "tests/nn/bench.hpp"
#include "tests/nn/gradient.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/einsum.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/stack.h>

#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <map>

using namespace mh;
using mh::test::Bench;
using mh::test::close;
using mh::test::filled;
using mh::test::hold_against;
using mh::test::leaves;

namespace {

constexpr int64_t kHeads = 3, kDim = 4, kValue = 5, kRope = 6, kRank = 7, kQueryRank = 8;
constexpr double kEps = 1e-3, kScale = 1.7;

LatentAttentionSpec small(bool query_latent) {
  LatentAttentionSpec spec{
      .embed = {axis::embed, 9},
      .heads = kHeads,
      .head_dim = kDim,
      .value_dim = kValue,
      .kv_rank = kRank,
      .rotary = {.dim = kRope, .base = 100},
      .score_scale = kScale,
      .norm_eps = kEps,
      .std = 0.5,
      .out_std = 0.5};
  if (query_latent) {
    spec.q_rank = kQueryRank;
  }
  return spec;
}

using Tensors = std::map<std::string, at::Tensor>;

at::Tensor rms(const at::Tensor& x, const at::Tensor& weight) {
  return x * (x.square().mean(-1, true) + kEps).rsqrt() * weight;
}

/// Neighbours (a, b) turn by position times frequency, with cosines and sines as tables hold them.
at::Tensor turned(const at::Tensor& x) {
  const at::Tensor position = at::arange(x.size(0), at::kDouble).view({-1, 1, 1, 1});
  const at::Tensor frequency =
      (at::arange(0, kRope, 2, at::kDouble) * (-std::log(100.0) / kRope)).exp();
  const at::Tensor angle = position * frequency;
  const at::Tensor cosine = angle.cos().to(at::kFloat), sine = angle.sin().to(at::kFloat);
  const auto pairs = x.unflatten(-1, {kRope / 2, 2}).unbind(-1);
  return at::stack({pairs[0] * cosine - pairs[1] * sine, pairs[0] * sine + pairs[1] * cosine}, -1)
      .flatten(-2);
}

at::Tensor plain(const Tensors& w, const at::Tensor& x) {
  const auto through = [&](const at::Tensor& in, const char* name) {
    return in.matmul(w.at(name).flatten(0, -2).t());
  };
  const bool latent = w.contains("q_down.weight");
  const at::Tensor q =
      (latent ? through(rms(through(x, "q_down.weight"), w.at("q_norm.weight")), "q_up.weight")
              : through(x, "q.weight"))
          .unflatten(-1, {kHeads, kDim + kRope});
  const at::Tensor kv =
      through(rms(through(x, "kv_down.weight"), w.at("kv_norm.weight")), "kv_up.weight")
          .unflatten(-1, {kHeads, kDim + kValue});
  const at::Tensor shared = turned(through(x, "k_rope.weight").unsqueeze(2));
  const at::Tensor scores =
      at::einsum("sbhd,tbhd->bhst", {q.narrow(3, 0, kDim), kv.narrow(3, 0, kDim)}) +
      at::einsum("sbhd,tbxd->bhst", {turned(q.narrow(3, kDim, kRope)), shared});
  const at::Tensor later = at::ones({x.size(0), x.size(0)}, at::kBool).triu(1);
  const at::Tensor shares = (scores * (kScale / std::sqrt(double(kDim + kRope))))
                                .masked_fill(later, -std::numeric_limits<double>::infinity())
                                .softmax(-1);
  const at::Tensor mixed = at::einsum("bhst,tbhd->sbhd", {shares, kv.narrow(3, kDim, kValue)});
  return through(mixed.flatten(2), "out.weight");
}

} // namespace

TEST_CASE("latent attention is its equations, gradients too") {
  for (const bool query_latent : {true, false}) {
    CAPTURE(query_latent);
    Bench bench;
    const LatentAttention attention(bench.builder, small(query_latent));
    Gradients gradients(bench.store, bench.mesh);
    {
      const at::NoGradGuard no_grad;
      for (auto& parameter : bench.store.all()) { // no norm weight of 1
        parameter.value.add_(filled(parameter.value.sizes().vec(), "noise"), 0.1);
      }
    }
    CHECK(leaves(bench.store).contains("q_down.weight") == query_latent);
    auto context = bench.context();
    hold_against(
        bench, 9, [&](const at::Tensor& x) { return attention.forward(x, context); }, plain
    );
  }
}

TEST_CASE("token by token with a cache, latent attention is the same") {
  Bench bench;
  const LatentAttention attention(bench.builder, small(true));
  const at::NoGradGuard no_grad;
  const at::Tensor x = filled({5, 2, 9}, "x");
  auto context = bench.context();
  const at::Tensor whole = attention.forward(x, context);
  KeyValueCache cache(5);
  for (int64_t i = 0; i < 5; ++i) {
    const Batch batch{
        .arrays =
            {{"tokens", at::ones({1, 2}, at::kLong)},
             {"positions", at::ones({1, 1}, at::kLong) * i}},
        .samples = {0, 1},
        .seq = 1,
        .batch = 2};
    StepContext one(bench.mesh, bench.rules, batch, {.kv_cache = &cache});
    close(attention.forward(x.narrow(0, i, 1), one), whole.narrow(0, i, 1));
  }
}

TEST_CASE("values wider than queries are refused") {
  Bench bench;
  auto spec = small(true);
  spec.value_dim = kDim + kRope + 1;
  CHECK_THROWS_AS(LatentAttention(bench.builder, spec), Error);
}

TEST_CASE("on the Meta device latent attention has the shapes of a step") {
  Mesh mesh;
  Rules rules;
  ParameterStore store;
  Builder builder(
      store, {.mesh = &mesh, .rules = &rules, .device = at::kMeta, .seq = 8, .microbatch = 2}
  );
  const LatentAttention attention(builder, small(true));
  Gradients gradients(store, mesh);
  const auto options = at::TensorOptions().device(at::kMeta);
  const Batch batch{
      .arrays = {{"tokens", at::ones({8, 2}, options.dtype(at::kLong))}},
      .samples = {0, 1},
      .seq = 8,
      .batch = 2};
  StepContext context(mesh, rules, batch);
  const at::Tensor x = at::ones({8, 2, 9}, options).requires_grad_();
  const at::Tensor y = attention.forward(x, context);
  CHECK(y.sizes() == x.sizes());
  torch::autograd::backward({y.sum()}, {});
  CHECK(x.grad().sizes() == x.sizes());
  constexpr double kPairs = 8 * 4.5; // a causal token of 8 attends to 4.5 in the mean
  CHECK(builder.flops.attention == 2.0 * kHeads * (kDim + kRope + kValue) * kPairs);
}
