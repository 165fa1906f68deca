// One model under several layouts of ranks as threads: the same loss, gradients and norm as on one
// rank.

#include "core/mesh/threads.hpp"
#include "megahost/gradients.hpp"
#include "megahost/model.hpp"
#include "tests/dist/whole.hpp"

#include <mutex>
#include <optional>

namespace layouts_tests {

using namespace mh;

namespace {

constexpr int64_t kSeq = 8;
constexpr int64_t kBatch = 4;

struct FullRecompute : RecomputePolicy {
  [[nodiscard]] Keep keep(int64_t) const override { return {.everything = false}; }
};

Whole run(
    const MeshShape& shape,
    bool sequence,
    const DecoderConfig& config,
    bool recompute,
    const std::optional<Fp8Spec>& fp8 = std::nullopt
) {
  Whole result;
  std::mutex mutex;
  run_ranks(shape, [&](const Mesh& mesh) {
    const Rules rules = rules_of(sequence);
    const Decoder decoder(config, {.vocab = kWords, .seq_length = kSeq});
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
    Gradients gradients(model.parameters(), mesh);
    const auto& dp = mesh.group(MeshAxis::dp);
    const Batch batch = batch_of(dp, kSeq, kBatch);
    constexpr double kCount = kSeq * kBatch - 1; // one token is masked
    at::Tensor loss;
    for (int64_t step = fp8 ? 0 : 1; step < 2; ++step) { // in FP8 the first makes the scales
      for (const auto& parameter : model.parameters().all()) {
        parameter.main_grad.zero_();
      }
      StepMode mode{.training = true, .seed = 9};
      if (mesh.world() > 1) { // one rank makes the vocabulary's gradients in a pass of their own
        mode.loss_count = [](const std::string&) { return kCount; };
      }
      StepContext context(mesh, rules, batch, std::move(mode));
      (void)model.forward(context);
      loss = context.losses().at(0).sum / kCount;
      backward(loss);
      model.end_step(mesh);
    }
    gradients.finish();
    const double norm = gradients.squared_norm().item().toDouble();
    at::Tensor total = loss.detach().clone();
    dp.all_reduce(total);
    const std::scoped_lock lock(mutex);
    result.loss = total.item().toDouble();
    result.squared_norm = norm;
    for (const auto& parameter : model.parameters().all()) {
      for (const auto& piece : parameter.pieces) {
        put(result.values, piece, parameter.view(parameter.value.detach(), piece), true);
        put(result.gradients, piece, parameter.view(parameter.main_grad, piece), false);
      }
    }
  });
  return result;
}

DecoderConfig llama() {
  DecoderConfig c = small_llama(2);
  c.tied = false;
  return c;
}

DecoderConfig gpt() {
  return small_gpt(2);
}

} // namespace

TEST_CASE("llama: every layout matches the single-rank result") {
  const Whole one = run({}, false, llama(), false);
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

TEST_CASE("gpt with dropout, biases and a tied output: every layout matches the single-rank result"
) {
  const Whole one = run({}, false, gpt(), false);
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

TEST_CASE("query-key norms, biases of queries, windows, norms and branches elsewhere: every layout"
) {
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
  SUBCASE("norms on the branches, and of queries and keys over all heads") {
    c.norm_placement = "branch";
    c.qk_norm_over = "all_heads";
  }
  SUBCASE(
      "norms by 1 + weight on both sides of each part, windows with a base of their own, a scaled "
      "embedding, bounded scores and logits"
  ) {
    c.norm = "rmsnorm_1p";
    c.norm_placement = "sandwich";
    c.score_cap = 0.6;
    c.logit_cap = 1.5;
    c.scaled_embedding = true;
    c.score_dim = 5;
    c.window_rope_base = 50;
    c.activation = "geglu_tanh";
    c.tied = true;
    c.dropout = 0.1;
  }
  SUBCASE("attention sinks, gates of heads, clamped gates, yarn with bounds within pairs, dropout"
  ) {
    c.sinks = true;
    c.attention_gate = true;
    c.activation = "swiglu_clamped";
    c.bias = true;
    c.rope_scaling = "yarn";
    c.rope_factor = 4;
    c.rope_original_length = 16;
    c.rope_truncate = false;
    c.attention_dropout = 0.1;
  }
  SUBCASE(
      "parallel branches that read one norm, layernorm without bias, neighbours rotated, a scale of "
      "logits, a bias of the output layer, dropout"
  ) {
    c.parallel_residual = true;
    c.shared_norm = true;
    c.norm = "layernorm_no_bias";
    c.rope_pairs = "adjacent";
    c.logit_scale = 3;
    c.head_bias = true;
    c.embedding_std = 0.5;
    c.dropout = 0.1;
  }
  SUBCASE("parallel branches, layernorm, a share of each head rotated, dropout") {
    c.parallel_residual = true;
    c.norm = "layernorm";
    c.rope_share = 0.5;
    c.dropout = 0.1;
  }
  SUBCASE("heads whose norms have weights of their own, layers without a window know no positions"
  ) {
    c.qk_norm_over = "own_head";
    c.qk_norm_kind = "layernorm_no_bias";
    c.rope_pattern = {"rope", "rope", "none"};
  }
  SUBCASE("a bias by distance, of the slopes of each head, dropout of probabilities") {
    c.positions = "alibi_scaled";
    c.qk_norm_kind = "layernorm";
    c.attention_dropout = 0.1;
  }
  const Whole one = run({}, false, c, false);
  CHECK(one.gradients.at("layers.1.attention.q_norm.weight").norm().item().toDouble() > 1e-6);
  compare(one, run({.dp = 2}, false, c, false));
  compare(one, run({.tp = 2}, false, c, true));
  compare(one, run({.tp = 2}, true, c, false));
  compare(one, run({.tp = 4}, true, c, false)); // two ranks share a key head
  compare(one, run({.dp = 2, .tp = 2}, true, c, true));
}

TEST_CASE("the output of the true vocabulary does not depend on its padding") {
  const Whole one = run({}, false, llama(), false);
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
  const Whole one = run({}, false, c, false, spec);
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

} // namespace layouts_tests
