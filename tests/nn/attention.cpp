// Core attention against its formula: masks, windows, documents, caches.

#include "megahost/nn/attention.hpp"

#include "core/nn/alibi.hpp"
#include "megahost/error.hpp"
#include "megahost/gradients.hpp"
#include "megahost/nn/attention_kernel.hpp"
#include "tests/nn/bench.hpp"
#include "tests/nn/gradient.hpp"

#include <ATen/ops/allclose.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <cmath>

using namespace mh;
using mh::test::Bench;
using mh::test::filled;

namespace {

/// softmax of scores [batch, heads, queries, keys] among which each head has one more, of no key.
at::Tensor shares_with_sinks(const at::Tensor& scores, const at::Tensor& sinks) {
  auto one = scores.sizes().vec();
  one.back() = 1;
  const at::Tensor last = sinks.view({1, -1, 1, 1}).expand(one);
  return at::cat({scores, last}, -1).softmax(-1).narrow(-1, 0, scores.size(-1));
}

/// Attention of four heads over fewer key heads, pair by pair; with sinks if they are defined.
at::Tensor attention_formula(
    const at::Tensor& q,
    const at::Tensor& k,
    const at::Tensor& v,
    const at::Tensor& hidden,
    const at::Tensor& sinks = {}
) {
  const auto heads = [](const at::Tensor& x) {
    return x.repeat_interleave(4 / x.size(2), 2).permute({1, 2, 0, 3});
  };
  const at::Tensor scores =
      at::matmul(q.permute({1, 2, 0, 3}), heads(k).transpose(-2, -1)) / std::sqrt(3.0);
  const at::Tensor seen = scores.masked_fill(hidden, -INFINITY);
  const at::Tensor shares = sinks.defined() ? shares_with_sinks(seen, sinks) : seen.softmax(-1);
  return at::matmul(shares, heads(v)).permute({2, 0, 1, 3});
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
  auto training = bench.context({.training = true});
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
  auto training = bench.context({.training = true});
  const at::Tensor expected = attention_formula(q, k, v, hidden);
  CHECK(at::allclose(core_attention(q, k, v, {.window = 2}, {}, training), expected));
  CHECK(at::allclose(core_attention(q, k, v, {.window = 2}, {.p = 1e-12}, training), expected));
}

TEST_CASE("attention sinks: against the formula, with windows, documents, dropout's seam, a cache"
) {
  Bench bench;
  const at::Tensor q = filled({5, 2, 4, 3}, "q");
  const at::Tensor k = filled({5, 2, 2, 3}, "k");
  const at::Tensor v = filled({5, 2, 2, 3}, "v");
  const at::Tensor sinks = at::tensor({0.5, -3.0, 2.0, 30.0}, at::kDouble); // the last takes all
  const at::Tensor places = at::arange(5);
  const at::Tensor back = places.unsqueeze(1) - places;
  for (const int64_t window : {0, 2}) {
    CAPTURE(window);
    const AttentionMask mask{.window = window};
    at::Tensor hidden = back.lt(0);
    hidden = window > 0 ? hidden.bitwise_or(back.ge(window)) : hidden;
    const at::Tensor expected = attention_formula(q, k, v, hidden, sinks);
    CHECK(expected.select(2, 3).abs().max().item().toDouble() < 1e-9);
    auto context = bench.context();
    CHECK(at::allclose(attend(q, k, v, mask, {}, context, {}, {}, sinks), expected));
    auto device = bench.context({.target = at::kCUDA});
    CHECK(at::allclose(attend(q, k, v, mask, {}, device, {}, {}, sinks), expected));
    test::check_gradients(
        [&](const auto& in) {
          auto c = bench.context();
          return attend(in[0], in[1], in[2], mask, {}, c, {}, {}, in[3]);
        },
        {q, k, v, sinks},
        1e-5
    );
    // One query that is the last token, and several.
    const auto late = [&](int64_t queries) {
      auto c = bench.context();
      return attend(q.narrow(0, 5 - queries, queries), k, v, mask, {}, c, {}, {}, sinks);
    };
    CHECK(at::allclose(late(1), expected.narrow(0, 4, 1)));
    CHECK(at::allclose(late(2), expected.narrow(0, 3, 2)));
  }
  bench.batch.arrays["segments"] =
      at::tensor({0, 0, 0, 1, 1, 0, 0, 0, 0, 0}, at::kLong).view({2, 5}).t().contiguous();
  const at::Tensor segments = bench.batch.arrays["segments"].t();
  const at::Tensor hidden =
      back.lt(0).bitwise_or(segments.unsqueeze(2).ne(segments.unsqueeze(1))).unsqueeze(1);
  const at::Tensor expected = attention_formula(q, k, v, hidden, sinks);
  auto training = bench.context({.training = true});
  CHECK(at::allclose(attend(q, k, v, {}, {}, training, {}, {}, sinks), expected));
  CHECK(at::allclose(attend(q, k, v, {}, {.p = 1e-12}, training, {}, {}, sinks), expected));
}

TEST_CASE("attention sinks: the kernels' numbers and gradients in float32 and bfloat16") {
  const std::vector<at::Tensor> exact{
      filled({70, 2, 4, 16}, "q"),
      filled({70, 2, 2, 16}, "k"),
      filled({70, 2, 2, 16}, "v"),
      at::tensor({0.5, -3.0, 2.0, 4.0}, at::kDouble)};
  const at::Tensor dy = filled({70, 2, 4, 16}, "dy");
  const auto run = [&](at::ScalarType type) {
    std::vector<at::Tensor> in;
    for (size_t i = 0; i < exact.size(); ++i) { // sinks are in the type of statistics
      in.push_back(
          exact[i].to(i < 3 || type == at::kDouble ? type : at::kFloat).clone().requires_grad_()
      );
    }
    const ops::KernelMask mask{.window = 20, .sinks = in[3]};
    const at::Tensor y = ops::flash_attention(in[0], in[1], in[2], 0.25, mask);
    torch::autograd::backward({y}, {dy.to(type)});
    std::vector<at::Tensor> results{y.detach().to(at::kDouble)};
    for (const at::Tensor& one : in) {
      results.push_back(one.grad().to(at::kDouble));
    }
    return results;
  };
  const auto expected = run(at::kDouble);
  for (const auto& [type, allowed] :
       {std::pair(at::kFloat, 1e-5), std::pair(at::kBFloat16, 2e-2)}) {
    const auto found = run(type);
    for (size_t i = 0; i < expected.size(); ++i) {
      CAPTURE(i);
      CHECK(
          (found[i] - expected[i]).norm().item<double>() <
          allowed * expected[i].norm().item<double>()
      );
    }
  }
  const at::Tensor& q = exact[0];
  CHECK_THROWS_WITH(
      (void)ops::attention(q, exact[1], exact[2], 1, {.sinks = exact[3]}),
      doctest::Contains("join_sinks_")
  );
}

TEST_CASE("attention sinks: a layer's parameter and its gradient, kept and recomputed") {
  Bench bench;
  const AttentionSpec spec{
      .embed = {axis::embed, 6}, .heads = 2, .kv_heads = 1, .head_dim = 3, .std = 1, .sinks = true};
  const Attention layer(bench.builder, spec);
  Gradients gradients(bench.store, bench.mesh);
  const at::Tensor later = at::ones({5, 5}, at::kBool).triu(1);
  auto context = bench.context();
  for (const Keep& keep : {Keep(), Keep{.everything = true, .redo = {"core_attention"}}}) {
    const auto plan = context.keeping(keep);
    gradients.clear();
    test::hold_against(
        bench,
        6,
        [&](const at::Tensor& x) { return layer.forward(x, context); },
        [&](const auto& weights, const at::Tensor& x) {
          const auto heads = [&](const char* name) {
            return at::linear(x, weights.at(name)).unflatten(-1, {-1, 3}).permute({1, 2, 0, 3});
          };
          const at::Tensor scores =
              at::matmul(heads("q.weight"), heads("k.weight").transpose(-2, -1)) / std::sqrt(3.0);
          const at::Tensor shares =
              shares_with_sinks(scores.masked_fill(later, -INFINITY), weights.at("sinks"));
          const at::Tensor mixed =
              at::matmul(shares, heads("v.weight")).permute({2, 0, 1, 3}).flatten(2);
          return at::linear(mixed, weights.at("out.weight"));
        }
    );
  }
  auto cross = spec;
  cross.mask.causal = false;
  const auto names = bench.builder.scope("cross");
  CHECK_THROWS_WITH_AS(
      CrossAttention(bench.builder, cross, "other"), doctest::Contains("no sinks"), Error
  );
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

TEST_CASE("cross attention: against the formula, of fewer keys than queries, within documents") {
  Bench bench;
  const at::Tensor q = filled({5, 2, 4, 3}, "q");
  const at::Tensor k = filled({3, 2, 2, 3}, "k");
  const at::Tensor v = filled({3, 2, 2, 3}, "v");
  auto context = bench.context();
  const at::Tensor nothing = at::zeros({5, 3}, at::kBool);
  const at::Tensor all = attention_formula(q, k, v, nothing);
  CHECK(at::allclose(cross_attend(q, k, v, "other", {}, context), all));
  test::check_gradients(
      [&](const auto& in) {
        auto c = bench.context();
        return cross_attend(in[0], in[1], in[2], "other", {}, c);
      },
      {q, k, v},
      1e-5
  );

  // Keys of another document are hidden where both sequences have some.
  auto& arrays = bench.batch.arrays;
  arrays["segments"] = at::tensor({0, 0, 0, 1, 1, 0, 0, 0, 0, 0}, at::kLong).view({2, 5}).t();
  CHECK(at::allclose(cross_attend(q, k, v, "other", {}, context), all));
  arrays["other_segments"] = at::tensor({0, 1, 1, 0, 0, 7}, at::kLong).view({2, 3}).t();
  const at::Tensor hidden = arrays["segments"]
                                .t()
                                .unsqueeze(2)
                                .ne(arrays["other_segments"].t().unsqueeze(1))
                                .unsqueeze(1);
  const at::Tensor expected = attention_formula(q, k, v, hidden);
  CHECK(at::allclose(cross_attend(q, k, v, "other", {}, context), expected));
  auto device = bench.context({.target = at::kCUDA});
  CHECK(at::allclose(cross_attend(q, k, v, "other", {}, device), expected));
  auto training = bench.context({.training = true, .target = at::kCUDA});
  CHECK(at::allclose(cross_attend(q, k, v, "other", {.p = 1e-12}, training), expected));
}

TEST_CASE("cross attention: the layer, its gradients and its FLOPs") {
  Bench bench;
  const Axis embed{axis::embed, 6};
  const AttentionSpec spec{
      .embed = embed,
      .heads = 2,
      .kv_heads = 1,
      .head_dim = 3,
      .mask = {.causal = false},
      .std = 1};
  const CrossAttention layer(bench.builder, spec, "other");
  CHECK(bench.builder.flops.attention == 4 * 2 * 3 * (5 * 3));
  CHECK(bench.builder.flops.gemms == 2 * 6 * (5 * 6 + 3 * (3 + 3) + 5 * 6));
  Gradients gradients(bench.store, bench.mesh);
  const at::Tensor memory = filled({3, 2, 6}, "memory");
  test::hold_against(
      bench,
      6,
      [&](const at::Tensor& x) {
        auto context = bench.context();
        return layer.forward(x, memory, context);
      },
      [&](const auto& weights, const at::Tensor& x) {
        const auto heads = [](const at::Tensor& y) {
          return y.unflatten(-1, {-1, 3}).permute({1, 2, 0, 3}); // [batch, heads, tokens, 3]
        };
        const at::Tensor q = heads(at::linear(x, weights.at("q.weight")));
        const at::Tensor k = heads(at::linear(memory, weights.at("k.weight")));
        const at::Tensor v = heads(at::linear(memory, weights.at("v.weight")));
        const at::Tensor shares = (at::matmul(q, k.transpose(-2, -1)) / std::sqrt(3.0)).softmax(-1);
        const at::Tensor mixed = at::matmul(shares, v).permute({2, 0, 1, 3}).flatten(2);
        return at::linear(mixed, weights.at("out.weight"));
      }
  );
  auto causal = spec;
  causal.mask.causal = true;
  const auto names = bench.builder.scope("causal");
  CHECK_THROWS_WITH_AS(
      CrossAttention(bench.builder, causal, "other"), doctest::Contains("have no order"), Error
  );
  auto context = bench.context();
  CHECK_THROWS_WITH_AS(
      (void)context.within("third"), doctest::Contains("the sequence `third`"), Error
  );
}

TEST_CASE("query-key norm: of each head, by weights of its own too, or over all heads") {
  using enum QueryKeyNorm;
  for (const QueryKeyNorm over : {head, own_head, all_heads}) {
    CAPTURE(static_cast<int>(over));
    Bench bench;
    const Attention layer(
        bench.builder,
        {.embed = {axis::embed, 6},
         .heads = 2,
         .kv_heads = 1,
         .head_dim = 3,
         .qk_norm_eps = 1e-2,
         .qk_norm_over = over,
         .mask = {.causal = false},
         .std = 1}
    );
    Gradients gradients(bench.store, bench.mesh);
    auto context = bench.context();
    test::hold_against(
        bench,
        6,
        [&](const at::Tensor& x) { return layer.forward(x, context); },
        [&](const auto& weights, const at::Tensor& x) {
          const auto heads = [&](const std::string& name) {
            at::Tensor y = at::linear(x, weights.at(name + ".weight"));
            const auto norm = weights.find(name + "_norm.weight");
            if (norm != weights.end()) {
              y = over == all_heads ? y : y.unflatten(-1, {-1, 3});
              y = y / (y.square().mean(-1, true) + 1e-2).sqrt() * norm->second;
            }
            return y.reshape({5, 2, -1, 3}).permute({1, 2, 0, 3});
          };
          const at::Tensor scores = at::matmul(heads("q"), heads("k").transpose(-2, -1));
          const at::Tensor mixed = at::matmul((scores / std::sqrt(3.0)).softmax(-1), heads("v"));
          return at::linear(mixed.permute({2, 0, 1, 3}).flatten(2), weights.at("out.weight"));
        }
    );
  }
}

TEST_CASE("ALiBi: slopes of any number of heads, and the bias of each distance") {
  const auto halves = [](int64_t heads) {
    std::vector<double> logs;
    for (const double slope : alibi_slopes(heads)) {
      logs.push_back(std::log2(slope));
    }
    return logs;
  };
  CHECK(halves(8) == std::vector<double>{-1, -2, -3, -4, -5, -6, -7, -8});
  CHECK(halves(6) == std::vector<double>{-2, -4, -6, -8, -1, -3}); // those of 4, then of 8
  CHECK(halves(1) == std::vector<double>{-8});

  Bench bench;
  auto context = bench.context();
  const at::Tensor bias = alibi_bias({6, 3, 2, 0.5}, 3, at::kDouble, context);
  const at::Tensor steps = at::tensor({2.0, 1.0, 0.0, 1.0, 2.0}, at::kDouble);
  CHECK(at::equal(bias[0], steps * (-0.5 / 256)));
  CHECK(at::equal(bias[1], steps * (-0.5 / 2)));
}

TEST_CASE("attention refuses what ALiBi does not go with, and heads with weights of a norm's bias"
) {
  Bench bench;
  AttentionSpec spec{
      .embed = {axis::embed, 6}, .heads = 2, .kv_heads = 1, .head_dim = 3, .alibi = 1};
  spec.mask.cap = 2;
  CHECK_THROWS_WITH_AS(
      Attention(bench.builder, spec), doctest::Contains("has no bounded scores"), Error
  );
  spec.mask.cap = 0;
  spec.relative_bias = RelativeBiasSpec{};
  const auto names = bench.builder.scope("second");
  CHECK_THROWS_WITH_AS(
      Attention(bench.builder, spec), doctest::Contains("has no relative bias"), Error
  );
  spec.alibi = std::nullopt;
  spec.relative_bias = std::nullopt;
  spec.qk_norm_eps = 1e-5;
  spec.qk_norm = NormKind::layernorm;
  spec.qk_norm_over = QueryKeyNorm::own_head;
  const auto others = bench.builder.scope("third");
  CHECK_THROWS_WITH_AS(Attention(bench.builder, spec), doctest::Contains("is no layernorm"), Error);
}

TEST_CASE("relative bias: T5's buckets, and a table's gradient") {
  const RelativeBiasSpec both{}, back{.bidirectional = false};
  const std::vector<std::pair<int64_t, int64_t>> buckets{
      {0, 0},
      {-1, 1},
      {1, 17},
      {7, 23},
      {-8, 8},
      {11, 24},
      {12, 25},
      {16, 26},
      {127, 31},
      {-200, 15}};
  for (const auto& [distance, bucket] : buckets) {
    CAPTURE(distance);
    CHECK(relative_bucket(distance, both) == bucket);
  }
  CHECK(relative_bucket(5, back) == 0);
  CHECK(relative_bucket(-15, back) == 15);
  CHECK(relative_bucket(-20, back) == 17);
  CHECK(relative_bucket(-500, back) == 31);

  Bench bench;
  const RelativeBiasSpec spec{.buckets = 4, .max_distance = 4, .std = 1};
  const Attention layer(
      bench.builder,
      {.embed = {axis::embed, 6},
       .heads = 2,
       .kv_heads = 2,
       .head_dim = 3,
       .mask = {.causal = false},
       .std = 1,
       .scale = 1.0,
       .relative_bias = spec}
  );
  CHECK(bench.builder.flops.attention == 4 * 2 * 3 * (5 * 5)); // a bidirectional layer's own pairs
  Gradients gradients(bench.store, bench.mesh);
  const at::Tensor distance = at::arange(5) - at::arange(5).unsqueeze(1);
  at::Tensor columns = distance.clone();
  for (int64_t i = 0; i < 25; ++i) {
    int64_t& column = columns.mutable_data_ptr<int64_t>()[i];
    column = relative_bucket(column, spec);
  }
  auto context = bench.context();
  for (const Keep& keep : {Keep(), Keep{.everything = true, .redo = {"core_attention"}}}) {
    const auto plan = context.keeping(keep);
    gradients.clear();
    test::hold_against(
        bench,
        6,
        [&](const at::Tensor& x) { return layer.forward(x, context); },
        [&](const auto& weights, const at::Tensor& x) {
          const auto heads = [&](const char* name) {
            return at::linear(x, weights.at(name)).unflatten(-1, {2, 3}).permute({1, 2, 0, 3});
          };
          const at::Tensor bias = weights.at("relative_bias.weight")
                                      .index_select(1, columns.reshape({-1}))
                                      .view({2, 5, 5});
          const at::Tensor shares =
              (at::matmul(heads("q.weight"), heads("k.weight").transpose(-2, -1)) + bias)
                  .softmax(-1);
          const at::Tensor mixed =
              at::matmul(shares, heads("v.weight")).permute({2, 0, 1, 3}).flatten(2);
          return at::linear(mixed, weights.at("out.weight"));
        }
    );
  }
}
