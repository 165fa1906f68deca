// The recompute plugins change what is kept, and not one bit of a loss or a gradient.

#include "megahost/host.hpp"
#include "megahost/model.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/ones.h>

#include <doctest/doctest.h>

#include <string>
#include <vector>

using namespace mh;

namespace {

constexpr int64_t kSeq = 16;
constexpr int64_t kLayers = 5;

/// The loss and all gradients of one microbatch with dropout.
std::vector<at::Tensor>
step(const Architecture& architecture, const RecomputePolicy* policy, at::ScalarType dtype) {
  const Mesh mesh;
  const Rules rules;
  Model model(
      architecture,
      {.mesh = &mesh, .rules = &rules, .dtype = dtype, .seq = kSeq, .microbatch = 2},
      policy
  );
  model.parameters().allocate_gradients();
  const at::Tensor tokens = at::arange(kSeq * 2).view({kSeq, 2}) * 7 % 50;
  const Batch batch{
      .arrays =
          {{"tokens", tokens},
           {"labels", (tokens * 3 + 1) % 50},
           {"loss_mask", at::ones({kSeq, 2})}},
      .samples = {4, 5},
      .seq = kSeq,
      .batch = 2};
  StepContext context(mesh, rules, batch);
  context.training = true;
  context.seed = 11;
  (void)model.forward(context);
  const at::Tensor loss = context.losses().at(0).sum;
  backward(loss);
  return {loss.detach(), model.parameters().gradients().clone()};
}

std::string kept(Host& host, const std::string& name, const Table& options) {
  const auto policy = host.make<RecomputePolicy>(name, options, {.layers = kLayers});
  std::string pattern;
  for (int64_t layer = 0; layer < kLayers; ++layer) {
    const Keep keep = policy->keep(layer);
    pattern += keep.joined ? 'j' : keep.everything ? 'k' : 'r';
  }
  return pattern;
}

} // namespace

TEST_CASE("full recompute: groups of blocks, or the first ones of a stage") {
  Host host;
  CHECK(kept(host, "none", {}) == "kkkkk");
  CHECK(kept(host, "full", {}) == "rrrrr");
  CHECK(kept(host, "full", {{"layers", 2}}) == "rjrjr");
  CHECK(kept(host, "full", {{"layers", 9}}) == "rjjjj");
  CHECK(kept(host, "full", {{"method", "block"}, {"layers", 2}}) == "rrkkk");
  CHECK(kept(host, "full", {{"method", "block"}, {"layers", 9}}) == "rrrrr");
  const auto selective = host.make<RecomputePolicy>(
      "selective", Table{{"parts", Value::Array{"norms"}}}, {.layers = 1}
  );
  CHECK(selective->keep(0).everything);
  CHECK(selective->keep(0).redoes("norms"));
  CHECK_FALSE(selective->keep(0).redoes("core_attention"));
}

TEST_CASE("losses and gradients have the same bits under every policy") {
  Host host;
  const Table common{
      {"layers", kLayers},
      {"hidden", 32},
      {"heads", 4},
      {"dropout", 0.2},
      {"attention_dropout", 0.1},
      {"vocab", 50}};
  Table llama = common;
  llama.set("kv_heads", 2);
  llama.set("qk_norm", true);
  llama.set("window", 5);
  for (const auto& [name, fields] : {std::pair{"gpt", common}, {"llama", llama}}) {
    const auto architecture =
        host.make<Architecture>(name, fields, {.vocab = 50, .seq_length = kSeq});
    for (const auto dtype : {at::kFloat, at::kBFloat16}) {
      const auto whole = step(*architecture, nullptr, dtype);
      CHECK(whole[1].norm().item().toDouble() > 0.1);
      const std::pair<const char*, Table> policies[] = {
          {"full", {}},
          {"full", {{"layers", 2}}},
          {"full", {{"layers", 5}}},
          {"full", {{"method", "block"}, {"layers", 3}}},
          {"selective", {}},
          {"selective", {{"parts", Value::Array{"norms"}}}},
          {"selective", {{"parts", Value::Array{"activations"}}}},
          {"selective", {{"parts", Value::Array{"core_attention", "norms", "activations"}}}},
      };
      for (const auto& [use, options] : policies) {
        CAPTURE(name);
        CAPTURE(use);
        const auto policy = host.make<RecomputePolicy>(use, options, {.layers = kLayers});
        const auto again = step(*architecture, policy.get(), dtype);
        CHECK(at::equal(again[0], whole[0]));
        CHECK(at::equal(again[1], whole[1]));
      }
    }
  }
}
