#pragma once
/// What layers are tried on: one rank, a small batch, tensors of fixed random numbers.

#include "megahost/builder.hpp"
#include "megahost/context.hpp"
#include "megahost/random.hpp"

#include <ATen/ops/arange.h>
#include <ATen/ops/ones.h>

#include <vector>

namespace mh::test {

inline at::Tensor filled(std::vector<int64_t> sizes, const char* name) {
  at::Tensor x = at::ones(sizes, at::kDouble);
  fill_normal(x, random_key(3, name), 1.0, sizes, std::vector<int64_t>(sizes.size(), 0));
  return x;
}

/// One rank, float64, sequences of 5 tokens, batches of 2.
struct Bench {
  Mesh mesh;
  Rules rules;
  ParameterStore store;
  Batch batch;
  Builder builder;

  Bench()
      : batch{.arrays = {{"tokens", at::arange(10).view({5, 2})}}, .samples = {0, 1}, .seq = 5, .batch = 2}
      , builder(
            store, {.mesh = &mesh, .rules = &rules, .dtype = at::kDouble, .seq = 5, .microbatch = 2}
        ) {}

  StepContext context() { return {mesh, rules, batch}; }
};

} // namespace mh::test
