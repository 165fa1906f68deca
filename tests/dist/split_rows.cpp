// Rows that ranks hold in parts, as those of queries of all heads: RMSNorm of whole rows.

#include "core/mesh/threads.hpp"
#include "megahost/builder.hpp"
#include "megahost/error.hpp"
#include "megahost/gradients.hpp"
#include "megahost/nn/norm.hpp"
#include "tests/dist/placed.hpp"
#include "tests/nn/bench.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/zeros_like.h>

#include <doctest/doctest.h>

#include <cmath>
#include <mutex>

namespace split_rows_tests {

using namespace mh;
using mh::test::filled;

namespace {

constexpr int64_t kWidth = 3; // width of a head

Norm norm_of(Builder& builder, NormKind kind, int64_t heads) {
  const Axis rows{axis::kv_heads, heads, kWidth};
  return {builder, {.kind = kind, .axis = rows, .eps = 1e-2, .seen = builder.place(rows)}};
}

} // namespace

TEST_CASE("parts of rows are normalised as whole rows are, forward and backward") {
  int64_t heads = 4, ranks = 2;
  SUBCASE("two heads on each rank") {}
  SUBCASE("a head on each of four ranks") {
    ranks = 4;
  }
  SUBCASE("two of four ranks hold the same head, and have shares of its gradient") {
    heads = 2;
    ranks = 4;
  }
  const int64_t n = heads * kWidth;
  const at::Tensor x = filled({5, 2, n}, "x").requires_grad_(), dy = filled({5, 2, n}, "dy");
  const at::Tensor weight = filled({n}, "weight").requires_grad_();
  const at::Tensor y = x / (x.square().mean(-1, /*keepdim=*/true) + 1e-2).sqrt() * weight;
  torch::autograd::backward({y}, {dy});
  const at::Tensor dx = at::zeros_like(x.grad());
  std::mutex mutex;
  run_ranks({.tp = ranks}, [&](const Mesh& mesh) {
    const Rules rules = rules_of(/*sequence=*/false);
    ParameterStore store;
    Builder builder(
        store, {.mesh = &mesh, .rules = &rules, .dtype = at::kDouble, .seq = 5, .microbatch = 2}
    );
    const Norm norm = norm_of(builder, NormKind::rmsnorm, heads);
    Gradients gradients(store, mesh);
    const Parameter& own = store.all()[0];
    const Piece& piece = own.pieces[0];
    const auto part = [&](const at::Tensor& whole) {
      return whole.detach().narrow(-1, piece.offset[0], piece.shape[0]);
    };
    own.value.detach().copy_(part(weight));
    const at::Tensor local = part(x).clone().requires_grad_();
    const at::Tensor made = norm.forward(local);
    const double share = heads >= ranks ? 1 : mesh.rank() % 2 == 0 ? 0.25 : 0.75;
    torch::autograd::backward({made}, {part(dy) * share});
    gradients.finish();
    const std::scoped_lock lock(mutex);
    CHECK(at::allclose(made, part(y), 1e-12, 1e-12));
    CHECK(at::allclose(own.main_grad, part(weight.grad()), 1e-12, 1e-12));
    part(dx).add_(local.grad());
  });
  CHECK(at::allclose(dx, x.grad(), 1e-12, 1e-12));
}

TEST_CASE("a row of two elements on two ranks, by hand") {
  run_ranks({.tp = 2}, [](const Mesh& mesh) {
    const Rules rules = rules_of(/*sequence=*/false);
    ParameterStore store;
    Builder builder(
        store, {.mesh = &mesh, .rules = &rules, .dtype = at::kDouble, .seq = 1, .microbatch = 1}
    );
    const Axis rows{axis::heads, 2};
    const Norm norm(
        builder, {.kind = NormKind::rmsnorm, .axis = rows, .eps = 0.5, .seen = builder.place(rows)}
    );
    const at::Tensor x = filled({1, 1, 1}, "x").fill_(mesh.rank() == 0 ? 3 : 4);
    const double expected = x.item<double>() / std::sqrt(12.5 + 0.5);
    CHECK(norm.forward(x).item<double>() == doctest::Approx(expected).epsilon(1e-12));
  });
}

TEST_CASE("a norm with a mean is refused where rows are split") {
  run_ranks({.tp = 2}, [](const Mesh& mesh) {
    const Rules rules = rules_of(/*sequence=*/false);
    ParameterStore store;
    Builder builder(store, {.mesh = &mesh, .rules = &rules, .seq = 5, .microbatch = 2});
    CHECK_THROWS_WITH_AS(
        (void)norm_of(builder, NormKind::layernorm, 4), doctest::Contains("split over tp"), Error
    );
  });
}

} // namespace split_rows_tests
