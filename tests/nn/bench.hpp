#pragma once
/// The setting in which layers are tried: one rank, a small batch, tensors of fixed random numbers.

#include "megahost/builder.hpp"
#include "megahost/context.hpp"
#include "megahost/random.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/ones.h>
#include <torch/csrc/autograd/autograd.h>

#include <doctest/doctest.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

namespace mh::test {

inline at::Tensor filled(std::vector<int64_t> sizes, const char* name) {
  at::Tensor x = at::ones(sizes, at::kDouble);
  fill_normal(x, random_key(3, name), 1.0, sizes, std::vector<int64_t>(sizes.size(), 0));
  return x;
}

/// One rank, float64, batches of 2; sequences of 5 tokens, and others of 3 called "other".
struct Bench {
  Mesh mesh;
  Rules rules;
  ParameterStore store;
  Batch batch;
  Builder builder;

  Bench()
      : batch{.arrays = {{"tokens", at::arange(10).view({5, 2})}}, .samples = {0, 1}, .seq = 5, .batch = 2, .sequences = {{"other", 3}}}
      , builder(
            store,
            {.mesh = &mesh,
             .rules = &rules,
             .dtype = at::kDouble,
             .seq = 5,
             .microbatch = 2,
             .sequences = {{"other", 3}}}
        ) {}

  StepContext context(StepMode mode = {}) { return {mesh, rules, batch, std::move(mode)}; }
};

/// The pieces' values as leaves of a graph of their own, by name.
inline std::map<std::string, at::Tensor> leaves(const ParameterStore& store) {
  std::map<std::string, at::Tensor> all;
  for (const auto& parameter : store.all()) {
    for (const auto& piece : parameter.pieces) {
      all[piece.name] = parameter.view(parameter.value.detach(), piece).clone().requires_grad_();
    }
  }
  return all;
}

inline void close(const at::Tensor& a, const at::Tensor& b) {
  CHECK((a - b).norm().item<double>() <= 1e-12 * b.norm().item<double>());
  CHECK(b.norm().item<double>() > 1e-3);
}

/// Holds a layer, x -> y, against plain operations, (leaves, x) -> y: its output, and the gradients
/// of its input and of all pieces.
template <class Layer, class Plain>
void hold_against(const Bench& bench, int64_t width, const Layer& layer, const Plain& plain) {
  const at::Tensor x = filled({5, 2, width}, "x").requires_grad_();
  const at::Tensor x2 = x.detach().clone().requires_grad_();
  const at::Tensor dy = filled({5, 2, width}, "dy");
  const at::Tensor y = layer(x);
  const auto weights = leaves(bench.store);
  const at::Tensor expected = plain(weights, x2);
  close(y.detach(), expected.detach());
  torch::autograd::backward({y}, {dy});
  torch::autograd::backward({expected}, {dy});
  close(x.grad(), x2.grad());
  for (const auto& parameter : bench.store.all()) {
    for (const auto& piece : parameter.pieces) {
      CAPTURE(piece.name);
      close(parameter.view(parameter.main_grad, piece), weights.at(piece.name).grad());
    }
  }
}

} // namespace mh::test
