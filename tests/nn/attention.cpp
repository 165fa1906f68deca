// Core attention against its formula: masks, windows, documents, caches.

#include "megahost/nn/attention.hpp"

#include "megahost/error.hpp"
#include "tests/nn/bench.hpp"
#include "tests/nn/gradient.hpp"

#include <ATen/ops/allclose.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <cmath>

using namespace mh;
using mh::test::Bench;
using mh::test::filled;

namespace {

/// Attention of four heads over fewer key heads, pair by pair.
at::Tensor attention_formula(
    const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& hidden
) {
  const auto heads = [](const at::Tensor& x) {
    return x.repeat_interleave(4 / x.size(2), 2).permute({1, 2, 0, 3});
  };
  const at::Tensor scores =
      at::matmul(q.permute({1, 2, 0, 3}), heads(k).transpose(-2, -1)) / std::sqrt(3.0);
  return at::matmul(scores.masked_fill(hidden, -INFINITY).softmax(-1), heads(v))
      .permute({2, 0, 1, 3});
}

} // namespace

TEST_CASE("attention: against the formula, with grouped queries, documents and dropout's seam") {
  Bench bench;
  const at::Tensor q = filled({5, 2, 4, 3}, "q");
  const at::Tensor k = filled({5, 2, 2, 3}, "k");
  const at::Tensor v = filled({5, 2, 2, 3}, "v");
  const at::Tensor later = at::ones({5, 5}, at::kBool).triu(1);
  auto context = bench.context();
  CHECK(at::allclose(core_attention(q, k, v, {}, {}, context), attention_formula(q, k, v, later)));
  test::check_gradients(
      [&](const auto& in) {
        auto c = bench.context();
        return core_attention(in[0], in[1], in[2], {}, {}, c);
      },
      {q, k, v},
      1e-5
  );

  // Two documents in sample 0, one in sample 1; with and without the plain path.
  bench.batch.arrays["segments"] =
      at::tensor({0, 0, 0, 1, 1, 0, 0, 0, 0, 0}, at::kLong).view({2, 5}).t().contiguous();
  const at::Tensor segments = bench.batch.arrays["segments"].t();
  const at::Tensor hidden =
      later.bitwise_or(segments.unsqueeze(2).ne(segments.unsqueeze(1))).unsqueeze(1);
  auto documents = bench.context();
  CHECK(at::allclose(core_attention(q, k, v, {}, {}, documents), attention_formula(q, k, v, hidden))
  );
  auto training = bench.context();
  training.training = true;
  const at::Tensor dropped = core_attention(q, k, v, {}, {.p = 1e-12}, training);
  CHECK(at::allclose(dropped, attention_formula(q, k, v, hidden)));
}

TEST_CASE("attention windows: against the formula, with documents, gradients and dropout's seam") {
  Bench bench;
  const at::Tensor q = filled({5, 2, 4, 3}, "q");
  const at::Tensor k = filled({5, 2, 2, 3}, "k");
  const at::Tensor v = filled({5, 2, 2, 3}, "v");
  const at::Tensor places = at::arange(5);
  const at::Tensor back = places.unsqueeze(1) - places;
  const at::Tensor outside = back.lt(0).bitwise_or(back.ge(2)); // itself and the one before
  auto context = bench.context();
  const at::Tensor windowed = core_attention(q, k, v, {.window = 2}, {}, context);
  CHECK(at::allclose(windowed, attention_formula(q, k, v, outside)));
  CHECK(at::allclose(windowed[0], v[0].repeat_interleave(2, 1))); // the first token sees itself
  const at::Tensor all = attention_formula(q, k, v, at::zeros({5, 5}, at::kBool));
  CHECK(at::allclose(core_attention(q, k, v, {.causal = false}, {}, context), all));
  CHECK(at::equal(
      core_attention(q, k, v, {.window = 5}, {}, context), core_attention(q, k, v, {}, {}, context)
  ));
  test::check_gradients(
      [&](const auto& in) {
        auto c = bench.context();
        return core_attention(in[0], in[1], in[2], {.window = 2}, {}, c);
      },
      {q, k, v},
      1e-5
  );

  bench.batch.arrays["segments"] =
      at::tensor({0, 0, 0, 1, 1, 0, 0, 0, 0, 0}, at::kLong).view({2, 5}).t().contiguous();
  const at::Tensor segments = bench.batch.arrays["segments"].t();
  const at::Tensor hidden =
      outside.bitwise_or(segments.unsqueeze(2).ne(segments.unsqueeze(1))).unsqueeze(1);
  auto training = bench.context();
  training.training = true;
  const at::Tensor expected = attention_formula(q, k, v, hidden);
  CHECK(at::allclose(core_attention(q, k, v, {.window = 2}, {}, training), expected));
  CHECK(at::allclose(core_attention(q, k, v, {.window = 2}, {.p = 1e-12}, training), expected));
}

TEST_CASE("attention over a cache of keys and values: as over all tokens at once") {
  Bench bench;
  const at::Tensor q = filled({5, 2, 4, 3}, "q");
  const at::Tensor k = filled({5, 2, 2, 3}, "k");
  const at::Tensor v = filled({5, 2, 2, 3}, "v");
  for (const int64_t window : {0, 2, 3}) {
    CAPTURE(window);
    auto whole = bench.context();
    const at::Tensor expected = core_attention(q, k, v, {.window = window}, {}, whole);
    KeyValueCache cache(5);
    int64_t begin = 0;
    for (const int64_t tokens : {2, 1, 2}) {
      auto context = bench.context();
      const auto [keys, values] =
          cache.append(7, k.narrow(0, begin, tokens), v.narrow(0, begin, tokens));
      CHECK(keys.size(0) == begin + tokens);
      CHECK(at::allclose(
          core_attention(q.narrow(0, begin, tokens), keys, values, {.window = window}, {}, context),
          expected.narrow(0, begin, tokens)
      ));
      begin += tokens;
    }
    CHECK_THROWS_AS((void)cache.append(7, k.narrow(0, 0, 1), v.narrow(0, 0, 1)), InternalError);
  }
  CHECK_THROWS_WITH_AS(
      Attention(
          bench.builder,
          {.embed = {axis::embed, 6},
           .heads = 2,
           .kv_heads = 2,
           .head_dim = 3,
           .mask = {.causal = false, .window = 2}}
      ),
      doctest::Contains("not causal"),
      Error
  );
}
