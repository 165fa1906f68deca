/// Times a mixture's experts, forward and backward in bfloat16, next to their GEMMs alone and
/// next to the loop over experts that `transformers` runs; and rows to experts and back next to a
/// copy of as many bytes.
///
///   expert_speed [TOKENS]

#include "core/memory/caching_allocator.hpp"
#include "megahost/gradients.hpp"
#include "megahost/nn/expert_kernel.hpp"
#include "megahost/nn/experts.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <vector>

namespace {

using at::Tensor;
using namespace mh;

/// Medians of some runs, in turn.
std::vector<double> seconds(const std::vector<std::function<void()>>& runs, int rounds) {
  std::vector<std::vector<double>> times(runs.size());
  for (int i = 0; i < rounds; ++i) {
    for (size_t r = 0; r < runs.size(); ++r) {
      const auto begin = std::chrono::steady_clock::now();
      runs[r]();
      const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - begin;
      times[r].push_back(taken.count());
    }
  }
  std::vector<double> medians;
  for (auto& all : times) {
    std::sort(all.begin(), all.end());
    medians.push_back(all[all.size() / 2]);
  }
  return medians;
}

struct Sizes {
  int64_t experts, chosen, width, hidden;
};

/// The loop of `transformers`: rows are looked up and added expert by expert.
Tensor loop(const Tensor& x, const Routing& routing, const Tensor& gate_up, const Tensor& down) {
  Tensor sum = at::zeros_like(x);
  for (int64_t e = 0; e < gate_up.size(0); ++e) {
    const Tensor where = routing.choices.eq(e).nonzero();
    if (where.size(0) == 0) {
      continue;
    }
    const Tensor token = where.select(1, 0), place = where.select(1, 1);
    const auto halves = at::linear(x.index_select(0, token), gate_up[e]).chunk(2, -1);
    const Tensor made = at::linear(at::silu(halves[0]) * halves[1], down[e]);
    const Tensor weight = routing.weights.index({token, place}).unsqueeze(1);
    sum = sum.index_add(0, token, (made * weight).to(x.scalar_type()));
  }
  return sum;
}

void measure(int64_t tokens, const Sizes& s) {
  Mesh mesh;
  Rules rules;
  ParameterStore store;
  Builder builder(
      store,
      {.mesh = &mesh, .rules = &rules, .dtype = at::kBFloat16, .seq = tokens, .microbatch = 1}
  );
  const Experts experts(
      builder, {.embed = {axis::embed, s.width}, .experts = s.experts, .hidden = s.hidden}
  );
  Gradients gradients(store, mesh);
  const Batch batch{.arrays = {}, .samples = {0}, .seq = tokens, .batch = 1};
  StepContext context(mesh, rules, batch);
  at::manual_seed(1);
  const auto [chosen, scores] = choose_experts(
      {.embed = {axis::embed, s.width}, .experts = s.experts, .chosen = s.chosen},
      at::randn({tokens, s.experts}),
      {}
  );
  const Routing routing = chosen;
  const Tensor x = at::randn({tokens, s.width}).to(at::kBFloat16).requires_grad_();
  const Tensor dy = at::randn({tokens, s.width}).to(at::kBFloat16);
  const auto& up = store.all()[0];
  const auto& down = store.all()[1];
  const auto ours = [&] {
    torch::autograd::backward({experts.mixed(x, routing, 0, context)}, {dy});
  };

  const auto [slots, ends] = ops::expert_slots(routing.choices, 0, s.experts, 0);
  const auto host = context.host_values(ends, {});
  const Tensor rows = ops::to_slots(x.detach(), slots, host.back());
  const Tensor w1 = up.value.detach().flatten(1, 2), w2 = down.value.detach();
  const Tensor wide = ops::grouped_product(rows, w1, ends, true);
  const Tensor active = wide.narrow(1, 0, s.hidden).contiguous();
  const auto alone = [&] {
    (void)ops::grouped_product(rows, w1, ends, true);
    (void)ops::grouped_product(active, w2, ends, true);
    (void)ops::grouped_product(rows, w2, ends, false);
    (void)ops::grouped_product(wide, w1, ends, false);
    ops::grouped_gradient_(up.main_grad.flatten(1, 2), wide, rows, ends);
    ops::grouped_gradient_(down.main_grad, rows, active, ends);
  };

  const Tensor gate_up = w1.clone().requires_grad_(), second = w2.clone().requires_grad_();
  const auto theirs = [&] {
    gate_up.mutable_grad() = Tensor();
    second.mutable_grad() = Tensor();
    torch::autograd::backward({loop(x, routing, gate_up, second)}, {dy});
  };

  const auto moved = [&] {
    (void)ops::from_slots(ops::to_slots(x.detach(), slots, host.back()), slots, routing.weights);
  };
  // A copy of as many bytes: tokens read and slots written, and back.
  const Tensor bytes = at::zeros({tokens * (1 + s.chosen), s.width}, at::kBFloat16);
  const auto copied = [&] { (void)at::empty_like(bytes).copy_(bytes); };

  const auto computing = seconds({ours, alone, theirs}, 9);
  const auto moving = seconds({moved, copied}, 31);
  const double flops = 3.0 * 2 * 3 * static_cast<double>(host.back() * s.width * s.hidden);
  std::printf(
      "%5lld tokens, %2lld experts of %lld x %lld, top %lld: %.1f ms, %.0f GFLOP/s; %.0f%% of the "
      "rate of the products alone; %.2f times the loop; moving rows %.2f times a copy\n",
      static_cast<long long>(tokens),
      static_cast<long long>(s.experts),
      static_cast<long long>(s.width),
      static_cast<long long>(s.hidden),
      static_cast<long long>(s.chosen),
      1e3 * computing[0],
      flops / computing[0] / 1e9,
      100 * computing[1] / computing[0],
      computing[2] / computing[0],
      moving[0] / moving[1]
  );
}

} // namespace

int main(int argc, char** argv) {
  mh::install_caching_allocator();
  const std::vector<int64_t> all =
      argc > 1 ? std::vector<int64_t>{std::atoll(argv[1])} : std::vector<int64_t>{2048, 4096, 8192};
  for (const int64_t tokens : all) {
    measure(tokens, {8, 2, 768, 2048});
    measure(tokens, {64, 6, 768, 512});
  }
}
