// One model under several layouts of ranks as threads: the same loss, gradients and norm as on one
// rank.

#include "core/mesh/threads.hpp"
#include "megahost/model.hpp"
#include "megahost/nn/decoder.hpp"
#include "tests/dist/placed.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/ones.h>

#include <doctest/doctest.h>

#include <cmath>
#include <map>
#include <mutex>

using namespace mh;

namespace {

constexpr int64_t kSeq = 8;
constexpr int64_t kBatch = 4;

struct Result {
  double loss = 0, squared_norm = 0;
  std::map<std::string, at::Tensor> gradients; // of the global tensors
};

struct FullRecompute : RecomputePolicy {
  [[nodiscard]] Keep keep(int64_t) const override { return {.everything = false}; }
};

Result
run(const MeshShape& shape,
    bool sequence,
    const DecoderConfig& config,
    bool recompute,
    const std::optional<Fp8Spec>& fp8 = std::nullopt) {
  Result result;
  std::mutex mutex;
  run_ranks(shape, [&](const Mesh& mesh) {
    const Rules rules = rules_of(sequence);
    const Decoder decoder(config, {.vocab = 50, .seq_length = kSeq});
    const FullRecompute full;
    Model model(
        decoder,
        {.mesh = &mesh,
         .rules = &rules,
         .dtype = at::kDouble,
         .seed = 3,
         .seq = kSeq,
         .microbatch = kBatch,
         .vocab_multiple = 4,
         .fp8 = fp8},
        recompute ? &full : nullptr
    );
    model.parameters().allocate_gradients();
    const auto& dp = mesh.group(MeshAxis::dp);
    const at::Tensor tokens = at::arange(kSeq * kBatch).view({kSeq, kBatch}) * 7 % 50;
    const at::Tensor labels = (tokens * 3 + 1) % 50;
    at::Tensor mask = at::ones({kSeq, kBatch});
    mask[kSeq - 1][0].fill_(0);
    Batch batch{
        .arrays =
            {{"tokens", dp.slice(tokens, 1).contiguous()},
             {"labels", dp.slice(labels, 1).contiguous()},
             {"loss_mask", dp.slice(mask, 1).contiguous()}},
        .samples = {},
        .seq = kSeq,
        .batch = kBatch};
    for (int64_t i = 0; i < kBatch / dp.size(); ++i) {
      batch.samples.push_back(dp.index() * (kBatch / dp.size()) + i);
    }
    const auto count = mask.sum().item().toDouble();
    at::Tensor loss;
    for (int64_t step = fp8 ? 0 : 1; step < 2; ++step) { // in FP8 the first makes the scales
      for (const auto& parameter : model.parameters().all()) {
        parameter.main_grad.zero_();
      }
      StepContext context(mesh, rules, batch);
      context.training = true;
      context.seed = 9;
      if (mesh.world() > 1) { // one rank makes the vocabulary's gradients in a pass of their own
        context.loss_count = [count](const std::string&) { return count; };
      }
      (void)model.forward(context);
      loss = context.losses().at(0).sum / count;
      backward(loss);
      model.end_step(mesh);
    }
    model.parameters().reduce_gradients(mesh);
    const double norm = model.parameters().squared_gradient_norm(mesh).item().toDouble();
    at::Tensor total = loss.detach().clone();
    dp.all_reduce(total);
    const std::scoped_lock lock(mutex);
    result.loss = total.item().toDouble();
    result.squared_norm = norm;
    for (const auto& parameter : model.parameters().all()) {
      for (const auto& piece : parameter.pieces) {
        auto& whole = result.gradients[piece.name];
        if (!whole.defined()) {
          whole = at::ones(piece.global_shape, at::kDouble) * 1e9; // what no rank writes shows
        }
        slice_of(whole, piece).copy_(parameter.view(parameter.main_grad, piece));
      }
    }
  });
  return result;
}

void compare(const Result& one, const Result& other, double tolerance = 1e-12) {
  CHECK(other.loss == doctest::Approx(one.loss).epsilon(tolerance));
  CHECK(other.squared_norm == doctest::Approx(one.squared_norm).epsilon(10 * tolerance));
  REQUIRE(other.gradients.size() == one.gradients.size());
  for (const auto& [name, gradient] : one.gradients) {
    CAPTURE(name);
    const double norm = gradient.norm().item().toDouble();
    CHECK(
        (other.gradients.at(name) - gradient).norm().item().toDouble() <=
        tolerance * std::max(norm, 1e-3 * std::sqrt(one.squared_norm))
    );
  }
}

DecoderConfig llama() {
  DecoderConfig c;
  c.layers = 2;
  c.hidden = 24;
  c.heads = 4;
  c.kv_heads = 2;
  c.ffn_hidden = 40;
  c.norm = "rmsnorm";
  c.activation = "swiglu";
  c.positions = "rope";
  c.bias = false;
  c.tied = false;
  c.init_std = 0.3;
  return c;
}

DecoderConfig gpt() {
  DecoderConfig c;
  c.layers = 2;
  c.hidden = 24;
  c.heads = 4;
  c.dropout = 0.1;
  c.attention_dropout = 0.1;
  c.init_std = 0.3;
  return c;
}

} // namespace

TEST_CASE("llama: every layout has the numbers of one rank") {
  const Result one = run({}, false, llama(), false);
  CHECK(one.loss > 3);
  SUBCASE("data 2") {
    compare(one, run({.dp = 2}, false, llama(), false));
  }
  SUBCASE("tensor 2") {
    compare(one, run({.tp = 2}, false, llama(), false));
  }
  SUBCASE("tensor 2, sequence") {
    compare(one, run({.tp = 2}, true, llama(), false));
  }
  SUBCASE("tensor 4 over 2 kv heads, sequence") {
    compare(one, run({.tp = 4}, true, llama(), false));
  }
  SUBCASE("tensor 2, sequence, data 2, recompute") {
    compare(one, run({.dp = 2, .tp = 2}, true, llama(), true));
  }
}

TEST_CASE("gpt with dropout, biases and a tied output: every layout has the numbers of one rank") {
  const Result one = run({}, false, gpt(), false);
  SUBCASE("data 4") {
    compare(one, run({.dp = 4}, false, gpt(), false));
  }
  SUBCASE("tensor 2") {
    compare(one, run({.tp = 2}, false, gpt(), false));
  }
  SUBCASE("tensor 4, sequence") {
    compare(one, run({.tp = 4}, true, gpt(), false));
  }
  SUBCASE("tensor 2, sequence, data 2, recompute") {
    compare(one, run({.dp = 2, .tp = 2}, true, gpt(), true));
  }
}

TEST_CASE("query-key norm, biases of queries, windows, norms elsewhere: every layout") {
  DecoderConfig c = llama();
  c.layers = 3;
  c.qk_norm = true;
  c.qkv_bias = true;
  c.window = 3;
  c.window_pattern = {"window", "window", "global"};
  SUBCASE("norms first, yarn") {
    c.rope_scaling = "yarn";
    c.rope_factor = 4;
    c.rope_original_length = 16;
  }
  SUBCASE("norms after the sums, layernorm, dropout") {
    c.norm_placement = "post";
    c.norm = "layernorm";
    c.bias = true;
    c.dropout = 0.1;
    c.attention_dropout = 0.1;
  }
  SUBCASE("norms on the branches, a tied output") {
    c.norm_placement = "branch";
    c.tied = true;
  }
  const Result one = run({}, false, c, false);
  CHECK(one.gradients.at("layers.1.attention.q_norm.weight").norm().item().toDouble() > 1e-6);
  compare(one, run({.dp = 2}, false, c, false));
  compare(one, run({.tp = 2}, false, c, true));
  compare(one, run({.tp = 2}, true, c, false));
  compare(one, run({.tp = 4}, true, c, false)); // two ranks share a key head
  compare(one, run({.dp = 2, .tp = 2}, true, c, true));
}

TEST_CASE("the output of the true vocabulary does not depend on its padding") {
  const Result one = run({}, false, llama(), false);
  CHECK(one.gradients.at("embedding.word.weight").size(0) == 50);
  CHECK(one.gradients.at("head.weight").size(0) == 50);
}

// Activations in float64: what is rounded to FP8 is then equal to 1e-7, and only values at the very
// middle between two FP8 values may be rounded to either.
TEST_CASE("products in fp8 have one rank's scales under every layout") {
  Fp8Spec spec;
  SUBCASE("delayed scaling") {
    spec.delayed = true;
    spec.history = 4;
  }
  SUBCASE("current scaling") {
    spec.delayed = false;
  }
  DecoderConfig c = llama();
  c.kv_heads = 4; // a head that two ranks share has its gradient rounded before the sum
  const Result one = run({}, false, c, false, spec);
  CHECK(one.loss > 3);
  if (spec.delayed) { // current scales are those of a rank's own samples
    compare(one, run({.dp = 2}, false, c, false, spec), 1e-5);
  }
  for (const bool sequence : {false, true}) {
    for (const bool recompute : {false, true}) {
      CAPTURE(sequence);
      CAPTURE(recompute);
      compare(one, run({.tp = 2}, sequence, c, recompute, spec), 1e-5);
      compare(one, run({.tp = 4}, sequence, c, recompute, spec), 1e-5);
    }
  }
}
