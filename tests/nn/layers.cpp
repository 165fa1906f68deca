#include "megahost/error.hpp"
#include "megahost/gradients.hpp"
#include "megahost/nn/dropout.hpp"
#include "megahost/nn/embedding.hpp"
#include "megahost/nn/feed_forward.hpp"
#include "megahost/nn/norm.hpp"
#include "megahost/nn/rotary.hpp"
#include "megahost/nn/vocab.hpp"
#include "tests/nn/bench.hpp"
#include "tests/nn/gradient.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/argmax.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/where.h>

#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <optional>

using namespace mh;
using mh::test::Bench;
using mh::test::filled;

TEST_CASE("linear: the product, its gradients, and packed pieces") {
  Bench bench;
  const Linear linear(
      bench.builder,
      {.in = {axis::embed, 3},
       .outs = {{"a", {axis::heads, 2, 2}}, {"b", {axis::mlp, 3}}},
       .bias = true,
       .std = 1}
  );
  Gradients gradients(bench.store, bench.mesh);
  auto context = bench.context();
  const at::Tensor x = filled({5, 2, 3}, "x").requires_grad_();
  const auto& weight = bench.store.all()[0];
  const auto& bias = bench.store.all()[1];
  CHECK(weight.pieces[1].name == "b.weight");
  CHECK(weight.pieces[1].row == 4);
  const at::Tensor y = linear.forward(x, context);
  CHECK(at::allclose(y, at::linear(x, weight.value, bias.value)));
  CHECK(linear.parts(y)[0].size(-1) == 4);
  CHECK(linear.parts(y)[1].size(-1) == 3);
  const at::Tensor dy = filled({5, 2, 7}, "dy");
  torch::autograd::backward({y}, {dy});
  CHECK(at::allclose(x.grad(), at::matmul(dy, weight.value)));
  const at::Tensor dw = at::matmul(dy.view({10, 7}).t(), x.detach().view({10, 3}));
  CHECK(at::allclose(weight.main_grad, dw));
  CHECK(at::allclose(bias.main_grad, dy.view({10, 7}).sum(0)));
  CHECK(bench.builder.flops.gemms == 2.0 * 3 * 7 * 5); // FLOPs of a sample of 5 tokens

  WeightQueue queue;
  auto split = bench.context({.weight_queue = &queue});
  torch::autograd::backward({linear.forward(x, split)}, {dy});
  CHECK(at::allclose(weight.main_grad, dw));
  queue.at(0)();
  CHECK(at::allclose(weight.main_grad, dw * 2.0));
}

TEST_CASE("norms: values and gradients") {
  const at::Tensor x = filled({3, 2, 4}, "x");
  const at::Tensor w = filled({4}, "w");
  const at::Tensor b = filled({4}, "b");
  CHECK(at::allclose(normalise(NormKind::layernorm, x, w, b, 1e-5), at::layer_norm(x, {4}, w, b)));
  const at::Tensor by_hand =
      normalise(NormKind::rmsnorm, at::tensor({3.0, 4.0}), at::tensor({1.0, 2.0}), {}, 0.0);
  CHECK(by_hand[0].item().toDouble() == doctest::Approx(3 / std::sqrt(12.5)));
  CHECK(by_hand[1].item().toDouble() == doctest::Approx(8 / std::sqrt(12.5)));
  test::check_gradients(
      [](const auto& in) { return normalise(NormKind::rmsnorm, in[0], in[1], {}, 1e-5); }, {x, w}
  );
  test::check_gradients(
      [](const auto& in) { return normalise(NormKind::layernorm, in[0], in[1], in[2], 1e-5); },
      {x, w, b}
  );
  CHECK(at::allclose(
      normalise(NormKind::rmsnorm_1p, x, w, {}, 1e-5),
      normalise(NormKind::rmsnorm, x, w + 1, {}, 1e-5)
  ));
  test::check_gradients(
      [](const auto& in) { return normalise(NormKind::rmsnorm_1p, in[0], in[1], {}, 1e-5); }, {x, w}
  );
  CHECK(at::allclose(
      normalise(norm_kind("layernorm_no_bias"), x, w, {}, 1e-5), at::layer_norm(x, {4}, w, {})
  ));
  test::check_gradients(
      [](const auto& in) {
        return normalise(norm_kind("layernorm_no_bias"), in[0], in[1], {}, 1e-5);
      },
      {x, w}
  );
  CHECK_THROWS_WITH_AS((void)norm_kind("batchnorm"), doctest::Contains("`batchnorm`"), Error);
}

TEST_CASE("a norm of a sum is the norm after the sum, forward and backward, and hands the sum on") {
  for (size_t i = 0; i < kNorms.size(); ++i) {
    const auto kind = static_cast<NormKind>(i);
    Bench bench;
    const Norm norm(
        bench.builder, {.kind = kind, .axis = {axis::embed, 4}, .eps = 1e-5, .seen = {}}
    );
    Gradients gradients(bench.store, bench.mesh);
    const at::Tensor dy = filled({3, 2, 4}, "dy"), dsum = filled({3, 2, 4}, "dsum");
    const auto run = [&](const at::Tensor& added, bool apart) {
      const at::Tensor x = filled({3, 2, 4}, "x").requires_grad_();
      const at::Tensor term = added.defined() ? added.clone().requires_grad_() : added;
      for (auto& parameter : bench.store.all()) {
        parameter.main_grad.zero_();
      }
      const at::Tensor sum = term.defined() ? x + term : x;
      const Normed made = apart ? Normed{norm.forward(sum), sum} : norm.of_sum(x, term);
      torch::autograd::backward({made.y, made.sum}, {dy, dsum});
      std::vector<at::Tensor> all{made.y, made.sum, x.grad(), term.defined() ? term.grad() : dy};
      for (const auto& parameter : bench.store.all()) {
        all.push_back(parameter.main_grad.clone());
      }
      return all;
    };
    for (const at::Tensor& added : {filled({3, 2, 4}, "added"), at::Tensor()}) {
      const auto together = run(added, /*apart=*/false), apart = run(added, /*apart=*/true);
      REQUIRE(together.size() == apart.size());
      for (size_t i = 0; i < apart.size(); ++i) {
        CAPTURE(i);
        CHECK(at::equal(together[i], apart[i]));
      }
    }
  }
}

TEST_CASE("a norm of plain operations: the same bits whether it is kept or recomputed") {
  struct Plain : NormPart {
    [[nodiscard]] at::Tensor forward(const at::Tensor& x) const override { // reads x twice
      return x / x.square().mean(-1, /*keepdim=*/true).add(1e-5).sqrt();
    }
  };

  Bench bench;
  auto context = bench.context();
  const NormPart& norm = Plain();
  const at::Tensor added = filled({64, 2, 6}, "added").to(at::kFloat);
  const auto gradient = [&](bool kept) {
    const at::Tensor x = filled({64, 2, 6}, "x").to(at::kFloat).requires_grad_();
    const Keep keep{.redo = {"norms"}};
    const auto plan = context.keeping(keep);
    Normed made;
    if (kept) {
      made = norm.of_sum(x, added);
    } else {
      made.sum = x + added;
      made.y = norm.forward(made.sum, context);
    }
    torch::autograd::backward({(made.sum * 3 + made.y).cos().sum()});
    return x.grad();
  };
  CHECK(at::equal(gradient(true), gradient(false)));
}

TEST_CASE("activations: values and gradients") {
  const at::Tensor x = filled({2, 2, 6}, "x");
  for (const auto* name :
       {"gelu", "gelu_tanh", "relu", "relu2", "swiglu", "geglu", "geglu_tanh", "swiglu_clamped"}) {
    CAPTURE(name);
    const auto kind = activation_kind(name);
    test::check_gradients([kind](const auto& in) { return activate(kind, in[0]); }, {x});
  }
  const at::Tensor halves = at::tensor({2.0, 3.0}); // silu(2) * 3
  CHECK(
      activate(ActivationKind::swiglu, halves).item().toDouble() ==
      doctest::Approx(3 * 2 / (1 + std::exp(-2.0)))
  );
  // Beyond the bounds of 7 the clamped one is what it is there, and has no slope.
  const at::Tensor beyond =
      at::tensor({8.0, 1.0, -9.0, 2.0, -9.0, 7.5}, at::kDouble).requires_grad_(); // gates, then ups
  const at::Tensor clamped = activate(activation_kind("swiglu_clamped"), beyond);
  const auto swish = [](double gate) { return gate / (1 + std::exp(-1.702 * gate)); };
  const at::Tensor expected = at::tensor({swish(7) * 3, swish(1) * -6, swish(-9) * 8}, at::kDouble);
  CHECK(at::allclose(clamped, expected));
  torch::autograd::backward({clamped.sum()});
  CHECK(beyond.grad()[0].item().toDouble() == 0);
  CHECK(beyond.grad()[1].item().toDouble() < -1);
  CHECK(beyond.grad()[3].item().toDouble() == doctest::Approx(swish(7)));
  CHECK(beyond.grad()[4].item().toDouble() == 0);
  CHECK(beyond.grad()[5].item().toDouble() == 0);
  CHECK_THROWS_WITH_AS((void)activation_kind("selu"), doctest::Contains("`selu`"), Error);
}

TEST_CASE("rotary embedding rotates halves, keeps lengths, and its inverse is its gradient") {
  Bench bench;
  auto context = bench.context();
  const RotarySpec spec{.dim = 4, .base = 100};
  const at::Tensor table = rotary_table(spec, context);
  CHECK(table.sizes() == at::IntArrayRef({2, 5, 1, 1, 2}));
  const at::Tensor x = filled({5, 2, 3, 6}, "x");
  const at::Tensor y = rotary(x, table);
  // Token 3, first pair: angle 3, second: 3 / 100^(2/4) = 0.3; the last two elements pass through.
  const auto at_ = [](const at::Tensor& t, int64_t i) { return t[3][1][2][i].item().toDouble(); };
  CHECK(
      at_(y, 0) ==
      doctest::Approx(at_(x, 0) * std::cos(3.0) - at_(x, 2) * std::sin(3.0)).epsilon(1e-6)
  );
  CHECK(
      at_(y, 3) ==
      doctest::Approx(at_(x, 3) * std::cos(0.3) + at_(x, 1) * std::sin(0.3)).epsilon(1e-6)
  );
  CHECK(at_(y, 5) == at_(x, 5));
  CHECK(y.norm().item().toDouble() == doctest::Approx(x.norm().item().toDouble()).epsilon(1e-6));
  test::check_gradients([&](const auto& in) { return rotary(in[0], table); }, {x.narrow(1, 0, 1)});
  const at::Tensor packed = filled({5, 2, 4, 6}, "packed");
  const std::vector<int64_t> heads{2, 1, 1};
  const auto parts = rotary(packed, heads, 2, table);
  CHECK(at::equal(parts[0], rotary(packed.narrow(2, 0, 2), table)));
  CHECK(at::equal(parts[1], rotary(packed.narrow(2, 2, 1), table)));
  CHECK(at::equal(parts[2], packed.narrow(2, 3, 1)));
  test::check_gradients(
      [&](const auto& in) {
        const auto made = rotary(in[0], heads, 2, table);
        return made[0].sum(2) * made[1].sum(2) * made[2].sum(2);
      },
      {packed.narrow(1, 0, 1)}
  );
  CHECK_THROWS_AS((void)rotary_frequencies({.dim = 3}), Error);
  CHECK_THROWS_AS((void)rotary_frequencies({.dim = 4, .scaling = "cubic"}), Error);
}

TEST_CASE("yarn scaling keeps pairs that turn often, stretches those that do not, scales both") {
  Bench bench;
  const RotarySpec plain{.dim = 128, .base = 10000};
  RotarySpec scaled = plain;
  scaled.scaling = "yarn";
  scaled.factor = 4;
  scaled.original_length = 2048;
  const auto a = rotary_frequencies(plain);
  const auto b = rotary_frequencies(scaled);
  // 32 turns in 2048 tokens: pair 128 ln(2048 / 64 pi) / (2 ln 10000) = 16.1; one turn: 40.2.
  CHECK(b[16] == a[16]);
  CHECK(b[28] == doctest::Approx(a[28] * (1 - 12.0 / 25) + a[28] / 4 * 12 / 25));
  CHECK(b[41] == doctest::Approx(a[41] / 4));
  auto context = bench.context();
  const at::Tensor table = rotary_table(scaled, context); // position 0: cos 0 times the factor
  CHECK(table[0][0][0][0][0].item().toDouble() == doctest::Approx(0.1 * std::log(4.0) + 1));
  scaled.attention = 0.5;
  CHECK(rotary_table(scaled, context)[0][0][0][0][0].item().toDouble() == doctest::Approx(0.5));
}

TEST_CASE("yarn scaling with bounds within pairs") {
  const RotarySpec plain{.dim = 64, .base = 150000};
  RotarySpec scaled = plain;
  scaled.scaling = "yarn";
  scaled.factor = 32;
  scaled.original_length = 4096;
  scaled.truncate = false;
  const auto a = rotary_frequencies(plain);
  const auto b = rotary_frequencies(scaled);
  // 32 turns in 4096 tokens: pair 64 ln(4096 / 64 pi) / (2 ln 150000) = 8.0928; one turn: 17.398.
  CHECK(b[8] == a[8]);
  const double stretched = (13 - 8.0928) / (17.3980 - 8.0928);
  CHECK(b[13] == doctest::Approx(a[13] * (1 - stretched) + a[13] / 32 * stretched).epsilon(1e-4));
  CHECK(b[18] == doctest::Approx(a[18] / 32));
  scaled.truncate = true;
  CHECK(rotary_frequencies(scaled)[9] < b[9]); // its bounds are 8 and 18
  CHECK(rotary_frequencies(scaled)[17] > b[17]);
  Bench bench;
  auto context = bench.context();
  const at::Tensor whole = rotary_table(scaled, context);
  scaled.truncate = false;
  CHECK_FALSE(at::allclose(rotary_table(scaled, context), whole, 0, 1e-9));
}

TEST_CASE("llama3 scaling keeps short wavelengths and stretches long ones") {
  const RotarySpec plain{.dim = 128, .base = 500000};
  RotarySpec scaled = plain;
  scaled.scaling = "llama3";
  scaled.factor = 8;
  scaled.original_length = 8192;
  const auto a = rotary_frequencies(plain);
  const auto b = rotary_frequencies(scaled);
  CHECK(b.front() == a.front());
  CHECK(b.back() == doctest::Approx(a.back() / 8));
  // 2 pi / f between 2048 and 8192 is blended: pair 31 of Llama 3.1.
  CHECK(b[31] < a[31]);
  CHECK(b[31] > a[31] / 8);
}

TEST_CASE("dropout: masks follow samples and tokens, not their place in a batch") {
  Bench bench;
  auto context = bench.context({.training = true, .seed = 5});
  const Axis embed{axis::embed, 64};
  const at::Tensor x = at::ones({5, 2, 64}, at::kDouble);
  const at::Tensor y = dropout(x, embed, 0.25, 11, context);
  CHECK(y.eq(0).to(at::kDouble).mean().item().toDouble() == doctest::Approx(0.25).epsilon(0.25));
  CHECK(y.max().item().toDouble() == doctest::Approx(1 / 0.75));
  // Sample 1 alone has the mask it had next to sample 0.
  bench.batch.samples = {1};
  bench.batch.batch = 1;
  bench.batch.arrays["tokens"] = at::arange(5).view({5, 1});
  auto alone = bench.context({.training = true, .seed = 5});
  CHECK(
      at::equal(dropout(x.narrow(1, 1, 1).contiguous(), embed, 0.25, 11, alone), y.narrow(1, 1, 1))
  );
  // Another site or seed gives another mask, evaluation gives none.
  CHECK(
      !at::equal(dropout(x.narrow(1, 1, 1).contiguous(), embed, 0.25, 12, alone), y.narrow(1, 1, 1))
  );
  auto later = bench.context({.training = true, .seed = 6});
  CHECK(
      !at::equal(dropout(x.narrow(1, 1, 1).contiguous(), embed, 0.25, 11, later), y.narrow(1, 1, 1))
  );
  auto evaluation = bench.context({.seed = 5});
  CHECK(at::equal(dropout(x, embed, 0.25, 11, evaluation), x));
  test::check_gradients(
      [&](const auto& in) {
        return dropout(in[0], {axis::embed, 4}, 0.5, 3, later);
      },
      {filled({5, 1, 4}, "x")}
  );
}

TEST_CASE("embedding: rows, and gradients of repeated ids added up") {
  Bench bench;
  const Embedding table(bench.builder, {axis::position, 4}, {axis::embed, 3}, 1.0);
  Gradients gradients(bench.store, bench.mesh);
  auto context = bench.context();
  const at::Tensor ids = at::tensor({1, 3, 1, 0}, at::kLong).view({2, 2});
  const at::Tensor y = table.forward(ids, context);
  CHECK(at::equal(y[1][0], table.weight().value[1]));
  torch::autograd::backward({y}, {at::ones({2, 2, 3}, at::kDouble)});
  CHECK(at::equal(table.weight().main_grad.select(1, 0), at::tensor({1.0, 2.0, 0.0, 1.0})));
}

TEST_CASE("vocabulary loss: cross entropy of the true vocabulary, padding left out") {
  Bench bench;
  ParameterStore store;
  Builder builder(
      store,
      {.mesh = &bench.mesh,
       .rules = &bench.rules,
       .dtype = at::kDouble,
       .seq = 5,
       .microbatch = 2,
       .vocab_multiple = 8}
  );
  const VocabHead head(builder, {axis::embed, 3}, {axis::vocab, 11}, 1.0);
  Gradients gradients(store, bench.mesh);
  auto& weight = store.all()[0];
  CHECK(weight.value.size(0) == 16);
  CHECK(weight.pieces[0].shape[0] == 11);
  auto context = bench.context();
  const at::Tensor x = filled({5, 2, 3}, "x").requires_grad_();
  const at::Tensor labels = at::arange(10).view({5, 2});
  const at::Tensor mask = at::ones({5, 2}).index_fill(0, at::tensor({2}, at::kLong), 0);

  const at::Tensor w = weight.value.detach().narrow(0, 0, 11).clone().requires_grad_();
  const at::Tensor x2 = x.detach().clone().requires_grad_();
  const at::Tensor logits = at::linear(x2, w);
  CHECK(at::allclose(head.logits(x, context), logits));
  const at::Tensor each = at::cross_entropy_loss(logits.view({10, 11}), labels.view({10}), {}, 0);
  const at::Tensor expected = (each.view({5, 2}) * mask).sum();
  torch::autograd::backward({expected * 0.5});
  for (const auto& factor : {std::optional<double>(), std::optional(0.5)}) { // two passes, one pass
    const at::Tensor best = logits.argmax(-1);
    const at::Tensor mixed = at::where(labels.remainder(2).eq(0), best, labels); // some are right
    at::Tensor correct;
    (void)head.loss(x.detach(), mixed, mask, context, std::nullopt, &correct);
    CHECK(correct.item().toDouble() == (best.eq(mixed) * mask).sum().item().toDouble());
    CHECK(correct.item().toDouble() > 0);
    const at::Tensor loss = head.loss(x, labels, mask, context, factor);
    CHECK(loss.item().toDouble() == doctest::Approx(expected.item().toDouble()).epsilon(1e-12));
    torch::autograd::backward({loss * 0.5});
    CHECK(at::allclose(x.grad(), x2.grad()));
    CHECK(at::allclose(weight.main_grad.narrow(0, 0, 11), w.grad()));
    CHECK(weight.main_grad.narrow(0, 11, 5).abs().max().item().toDouble() == 0);
    x.mutable_grad() = at::Tensor();
    weight.main_grad.zero_();
  }
  const at::Tensor promised = head.loss(x, labels, mask, context, 0.25) * 0.5;
  CHECK_THROWS_WITH(torch::autograd::backward({promised}), doctest::Contains("said ahead"));
  {
    const at::NoGradGuard no_grad; // evaluation: no gradient is made
    weight.main_grad.zero_();
    CHECK(
        head.loss(x, labels, mask, context, 0.5).item().toDouble() ==
        doctest::Approx(expected.item().toDouble()).epsilon(1e-12)
    );
    CHECK(weight.main_grad.abs().max().item().toDouble() == 0);
  }

  CHECK_THROWS_WITH_AS(
      (void)head.loss(x, labels + 5, mask, context), doctest::Contains("vocabulary of 11"), Error
  );
}

TEST_CASE("vocabulary loss with a bias: logits, loss, and the gradients of weight and bias") {
  double cap = 0;
  bool known = false;
  SUBCASE("as they are") {}
  SUBCASE("logits within a cap") {
    cap = 0.8;
  }
  SUBCASE("the tokens that count are known, and no score of the others is computed") {
    known = true;
  }
  Bench bench;
  const VocabHead head(
      bench.builder, {axis::embed, 3}, {axis::vocab, 11}, 1.0, "", /*bias=*/true, cap
  );
  auto& store = bench.store;
  Gradients gradients(store, bench.mesh);
  auto& weight = *store.find("weight");
  auto& bias = *store.find("bias");
  bias.value.detach().copy_(filled({11}, "bias"));
  const at::Tensor x = filled({5, 2, 3}, "x");
  const at::Tensor labels = at::arange(10).view({5, 2});
  const at::Tensor mask = at::ones({5, 2}).index_fill(0, at::tensor({2}, at::kLong), 0);
  if (known) {
    bench.batch.arrays["loss_mask"] = mask;
    bench.batch.counted["loss_mask"] = at::tensor({0, 1, 2, 3, 6, 7, 8, 9}, at::kLong);
  }
  auto context = bench.context();
  const at::Tensor w = weight.value.detach().clone().requires_grad_();
  const at::Tensor b = bias.value.detach().clone().requires_grad_();
  const at::Tensor x2 = x.detach().clone().requires_grad_();
  const at::Tensor raw = at::linear(x2, w, b);
  const at::Tensor logits = cap > 0 ? (raw / cap).tanh() * cap : raw;
  CHECK(at::allclose(head.logits(x, context), logits));
  const at::Tensor each = at::cross_entropy_loss(logits.view({10, 11}), labels.view({10}), {}, 0);
  const at::Tensor expected = (each.view({5, 2}) * mask).sum();
  torch::autograd::backward({expected * 0.5});
  for (const auto& factor : {std::optional<double>(), std::optional(0.5)}) {
    gradients.clear();
    const at::Tensor own = x.detach().clone();
    if (known) {
      own.select(0, 2).fill_(std::numeric_limits<double>::quiet_NaN());
    }
    own.requires_grad_();
    const at::Tensor loss = head.loss(own, labels, mask, context, factor);
    CHECK(loss.item().toDouble() == doctest::Approx(expected.item().toDouble()).epsilon(1e-12));
    torch::autograd::backward({loss * 0.5});
    CHECK(at::allclose(own.grad(), x2.grad()));
    CHECK(at::allclose(weight.main_grad, w.grad()));
    CHECK(at::allclose(bias.main_grad, b.grad()));
  }
}
