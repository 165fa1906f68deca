// Decoders of many kinds read token by token, over a cache, as they do all tokens at once.

#include "megahost/nn/decoder.hpp"

#include "megahost/model.hpp"
#include "megahost/nn/attention.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>

#include <doctest/doctest.h>

using namespace mh;

namespace {

constexpr int64_t kSeq = 12;

DecoderConfig gpt() {
  DecoderConfig c;
  c.layers = 3;
  c.hidden = 16;
  c.heads = 4;
  c.init_std = 0.3;
  return c;
}

DecoderConfig llama() {
  DecoderConfig c = gpt();
  c.kv_heads = 2;
  c.norm = "rmsnorm";
  c.activation = "swiglu";
  c.positions = "rope";
  c.bias = false;
  c.tied = false;
  return c;
}

struct Reader {
  explicit Reader(const DecoderConfig& config)
      : decoder(config, {.vocab = 30, .seq_length = kSeq})
      , model(
            decoder,
            {.mesh = &mesh, .rules = &rules, .dtype = at::kDouble, .seq = kSeq, .microbatch = 2}
        ) {}

  /// Logits of tokens `begin` to `end` - 1.
  at::Tensor logits(int64_t begin, int64_t end, KeyValueCache* cache, bool last = false) {
    const at::Tensor tokens = at::arange(kSeq * 2).view({kSeq, 2}) * 7 % 30;
    const Batch batch{
        .arrays =
            {{"tokens", tokens.narrow(0, begin, end - begin)},
             {"token_index", at::arange(begin, end)}},
        .samples = {0, 1},
        .seq = end - begin,
        .batch = 2};
    StepContext context(mesh, rules, batch);
    context.kv_cache = cache;
    context.last_logits = last;
    const at::NoGradGuard no_grad;
    return model.forward(context)["logits"].value;
  }

  Mesh mesh;
  Rules rules;
  Decoder decoder;
  Model model;
};

void compare(const DecoderConfig& config) {
  Reader reader(config);
  const at::Tensor whole = reader.logits(0, kSeq, nullptr);
  CHECK(whole.std().item().toDouble() > 0.1);
  KeyValueCache cache(kSeq);
  std::vector<at::Tensor> parts = {reader.logits(0, 5, &cache)};
  for (int64_t i = 5; i < kSeq; ++i) {
    parts.push_back(reader.logits(i, i + 1, &cache));
  }
  CHECK(reader.model.reads_cache());
  CHECK((at::cat(parts) - whole).abs().max().item().toDouble() < 1e-12);
  const at::Tensor last = reader.logits(0, kSeq, nullptr, true);
  CHECK(last.size(0) == 1);
  CHECK((last[0] - whole[kSeq - 1]).abs().max().item().toDouble() < 1e-12);
}

} // namespace

TEST_CASE("decoders read token by token as they do all at once") {
  DecoderConfig c = llama();
  SUBCASE("gpt") {
    c = gpt();
  }
  SUBCASE("gpt, norms after the sums") {
    c = gpt();
    c.norm_placement = "post";
  }
  SUBCASE("llama") {}
  SUBCASE("a window in every layer") {
    c.window = 3;
  }
  SUBCASE("windows in two of three layers, query-key norm, yarn, norms on the branches") {
    c.window = 4;
    c.window_pattern = {"window", "global", "window"};
    c.qk_norm = true;
    c.norm_placement = "branch";
    c.rope_scaling = "yarn";
    c.rope_factor = 4;
    c.rope_original_length = 16;
  }
  SUBCASE("no positions, one key head") {
    c.positions = "none";
    c.kv_heads = 1;
  }
  compare(c);
}

TEST_CASE("a window changes what tokens beyond it see, and only that") {
  DecoderConfig c = llama();
  Reader all(c);
  c.window = 6;
  Reader windowed(c);
  const at::Tensor difference =
      (all.logits(0, kSeq, nullptr) - windowed.logits(0, kSeq, nullptr)).abs().amax({1, 2});
  CHECK(difference.narrow(0, 0, 6).max().item().toDouble() < 1e-12);
  CHECK(difference.narrow(0, 6, 6).min().item().toDouble() > 1e-6);
  c.window_pattern = {"global"};
  Reader global(c);
  CHECK(at::equal(global.logits(0, kSeq, nullptr), all.logits(0, kSeq, nullptr)));
}
