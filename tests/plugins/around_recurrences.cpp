// The convolution before a recurrence and the norm behind it: as many rows at once as a CPU's caches
// hold, or as a GPU takes in few launches, give the same.

#include "megahost/builder.hpp"
#include "megahost/context.hpp"
#include "plugins/models/hybrid/convolution.hpp"
#include "plugins/models/hybrid/gated_norm.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/autograd.h>

#include <doctest/doctest.h>

#include <vector>

namespace around_recurrences_tests {

using namespace mh;
using namespace mh::hybrid;

namespace {

constexpr int64_t kSeq = 150, kBatch = 2, kHeads = 4,
                  kDim = 6; // more rows than a CPU takes at once

at::Tensor leaf(std::vector<int64_t> sizes) {
  return at::randn(sizes, at::kDouble).requires_grad_();
}

double difference(const at::Tensor& a, const at::Tensor& b) {
  return ((a - b).norm() / b.norm()).item<double>();
}

/// Results and gradients of `leaves` under a target.
template <class Forward>
std::vector<at::Tensor>
results(at::DeviceType target, const std::vector<at::Tensor>& leaves, const Forward& forward) {
  const Mesh mesh;
  const Rules rules;
  const Batch batch{
      .arrays = {{"tokens", at::zeros({kSeq, kBatch}, at::kLong)}},
      .samples = {0, 1},
      .seq = kSeq,
      .batch = kBatch};
  StepContext context(mesh, rules, batch, {.target = target});
  const at::Tensor y = forward(context);
  const at::Tensor weight = at::arange(y.numel(), at::kDouble).sin().view(y.sizes());
  auto made = torch::autograd::grad({(y * weight).sum()}, leaves);
  made.push_back(y.detach());
  return made;
}

template <class Forward>
void compare_targets(const std::vector<at::Tensor>& leaves, const Forward& forward) {
  const auto cpu = results(at::kCPU, leaves, forward), gpu = results(at::kCUDA, leaves, forward);
  for (size_t i = 0; i < cpu.size(); ++i) {
    CAPTURE(i);
    CHECK(difference(gpu[i], cpu[i]) < 1e-13);
  }
}

} // namespace

TEST_CASE("rows at once change nothing") {
  at::manual_seed(5);
  const Mesh mesh;
  const Rules rules;
  ParameterStore store;
  Builder builder(
      store,
      {.mesh = &mesh, .rules = &rules, .dtype = at::kDouble, .seq = kSeq, .microbatch = kBatch}
  );
  const Axis heads{axis::heads, kHeads, kDim};
  const Convolution convolution(builder, {{"x", heads}}, /*taps=*/4, /*bias=*/true);
  const GatedNorm norm(builder, heads, /*groups=*/2, 1e-5);
  std::vector<at::Tensor> weights;
  for (Parameter& parameter : store.all()) {
    parameter.value.detach().normal_();
    weights.push_back(parameter.value);
  }

  const at::Tensor x = leaf({kSeq, kBatch, kHeads * kDim});
  const at::Tensor token = at::arange(kSeq).unsqueeze(1).expand({kSeq, kBatch});
  for (const at::Tensor& documents : {at::Tensor(), token.ge(63).to(at::kLong)}) {
    CAPTURE(documents.defined());
    compare_targets({x, weights[0], weights[1]}, [&](StepContext& context) {
      return convolution.forward(x, documents, context);
    });
  }

  const std::vector<int64_t> by_head{kSeq, kBatch, kHeads, kDim};
  const std::vector<at::Tensor> in{
      leaf(by_head), leaf(by_head), leaf({kHeads}), leaf(x.sizes().vec())};
  compare_targets({in[0], in[1], in[2], in[3], weights[2]}, [&](StepContext& context) {
    return norm.forward(in[0], in[1], in[2], in[3], context.mode().target);
  });
}

} // namespace around_recurrences_tests
