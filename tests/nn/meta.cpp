// The Meta device: models of any size are built, run forward and backward, without memory.

#include "megahost/gradients.hpp"
#include "megahost/model.hpp"
#include "megahost/nn/decoder.hpp"

#include <ATen/ops/empty.h>

#include <doctest/doctest.h>

using namespace mh;

namespace {

int64_t parameters(const DecoderConfig& config) {
  const Mesh mesh;
  const Rules rules;
  const Decoder decoder(config, {.vocab = 0, .seq_length = 1024});
  return Model(
             decoder,
             {.mesh = &mesh, .rules = &rules, .device = at::kMeta, .seq = 1024, .microbatch = 1}
  )
      .parameters()
      .global_elements();
}

} // namespace

TEST_CASE("gpt2 has 124439808 parameters") {
  DecoderConfig c;
  c.vocab = 50257;
  CHECK(parameters(c) == 124439808);
}

TEST_CASE("a step of a 70B llama runs on the Meta device") {
  DecoderConfig c;
  c.layers = 80;
  c.hidden = 8192;
  c.heads = 64;
  c.kv_heads = 8;
  c.ffn_hidden = 28672;
  c.vocab = 32000;
  c.norm = "rmsnorm";
  c.activation = "swiglu";
  c.positions = "rope";
  c.bias = false;
  c.tied = false;
  const Mesh mesh;
  const Rules rules;
  const Decoder decoder(c, {.vocab = 0, .seq_length = 4096});
  Model model(
      decoder,
      {.mesh = &mesh,
       .rules = &rules,
       .device = at::kMeta,
       .dtype = at::kBFloat16,
       .seq = 4096,
       .microbatch = 1}
  );
  CHECK(model.parameters().global_elements() == 68976648192);
  Gradients gradients(model.parameters(), mesh);
  const auto ids = at::empty({4096, 1}, at::TensorOptions().device(at::kMeta).dtype(at::kLong));
  const Batch batch{
      .arrays = {{"tokens", ids}, {"labels", ids}, {"loss_mask", ids.to(at::kFloat)}},
      .samples = {0},
      .seq = 4096,
      .batch = 1};
  StepContext context(mesh, rules, batch, {.training = true});
  (void)model.forward(context);
  backward(context.losses().at(0).sum);
  CHECK(gradients.squared_norm().is_meta());
}
