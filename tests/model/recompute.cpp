#include "core/model/recompute.hpp"

#include "tests/nn/bench.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/equal.h>

using namespace mh;
using mh::test::filled;

TEST_CASE("recomputed: the same values and gradients as when everything is kept") {
  const at::Tensor x = filled({3, 4}, "x").requires_grad_();
  const auto f = [](const auto& in) { return std::vector<at::Tensor>{in[0].sin() * in[0]}; };
  torch::autograd::backward({recomputed(f, {x})[0].sum()});
  const at::Tensor again = x.grad().clone();
  x.mutable_grad() = at::Tensor();
  torch::autograd::backward({f(std::vector<at::Tensor>{x})[0].sum()});
  CHECK(at::equal(again, x.grad()));
}

TEST_CASE("what only one layer reads is not kept, and is there again for its backward") {
  const at::Tensor x = filled({3, 4}, "x").requires_grad_();
  const auto f = [](const auto& in) { return in[0].sin() * in[0]; };
  at::Tensor kept;
  const auto reader = [&kept](const at::Tensor& y) {
    kept = y;
    return y * y; // saves y
  };
  const at::Tensor expected = reader(f(std::vector<at::Tensor>{x}));
  expected.sum().backward();
  const at::Tensor gradient = x.grad().clone();
  x.mutable_grad() = at::Tensor();

  const at::Tensor y = recomputed_for(f, {x}, reader);
  CHECK(at::equal(y, expected));
  CHECK(kept.storage().nbytes() == 0);
  y.sum().backward();
  CHECK(at::equal(x.grad(), gradient));
  CHECK(at::equal(kept, f(std::vector<at::Tensor>{x})));

  const auto same = [](const auto& in) { return in[0]; };
  x.mutable_grad() = at::Tensor();
  recomputed_for(same, {x}, reader).sum().backward(); // the input's own memory stays
  CHECK(at::equal(x.grad(), 2 * x));
  const at::NoGradGuard no_grad;
  CHECK(at::equal(recomputed_for(f, {x}, reader), expected));
}
