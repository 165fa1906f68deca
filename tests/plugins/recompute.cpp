// The recompute plugins change what is kept, and not one bit of a loss or a gradient.

#include "megahost/error.hpp"
#include "megahost/gradients.hpp"
#include "megahost/host.hpp"
#include "megahost/model.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/ones.h>

#include <doctest/doctest.h>

#include <algorithm>
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
  Gradients gradients(model.parameters(), mesh);
  const at::Tensor tokens = at::arange(kSeq * 2).view({kSeq, 2}) * 7 % 50;
  const Batch batch{
      .arrays =
          {{"tokens", tokens},
           {"labels", (tokens * 3 + 1) % 50},
           {"loss_mask", at::ones({kSeq, 2})}},
      .samples = {4, 5},
      .seq = kSeq,
      .batch = 2};
  StepContext context(mesh, rules, batch, {.training = true, .seed = 11});
  (void)model.forward(context);
  const at::Tensor loss = context.losses().at(0).sum;
  backward(loss);
  std::vector<at::Tensor> all{loss.detach()};
  for (const auto& owned : gradients.owned()) {
    all.push_back(owned.gradient);
  }
  return all;
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

TEST_CASE("a memory budget is met by the plan that recomputes least") {
  Host host;
  int64_t asked = 0;
  // Weights take 100 MB; a block keeps 10 MB, 8 MB without its attention, 6 MB without its
  // feed-forward, 3 MB without both, 1 MB of inputs, and needs 9 MB more while it runs again as a
  // whole; groups keep nothing but their first input.
  const auto peak = [&](const std::vector<Keep>& plan) {
    ++asked;
    int64_t bytes = 100'000'000;
    int64_t again = 0;
    int64_t group = 0;
    for (const Keep& keep : plan) {
      group = keep.joined ? group + 1 : 1;
      again = keep.everything ? again : std::max(again, 9'000'000 * group);
      bytes += keep.joined                ? 0
               : !keep.everything         ? 1'000'000
               : keep.redo.empty()        ? 10'000'000
               : !keep.redoes("mlp")      ? 8'000'000
               : keep.redoes("attention") ? 3'000'000
                                          : 6'000'000;
    }
    return bytes + again;
  };
  const auto plan = [&](double gigabytes) {
    const auto policy = host.make<RecomputePolicy>(
        "budget", Table{{"memory_gb", gigabytes}}, {.layers = kLayers, .peak_memory = peak}
    );
    std::string pattern;
    for (int64_t layer = 0; layer < kLayers; ++layer) {
      const Keep keep = policy->keep(layer);
      pattern += keep.joined                ? 'j'
                 : !keep.everything         ? 'r'
                 : keep.redo.empty()        ? 'k'
                 : !keep.redoes("mlp")      ? 'a'
                 : keep.redoes("attention") ? 'b'
                                            : 'm';
    }
    return pattern;
  };
  CHECK(plan(0.1501) == "kkkkk");
  CHECK(plan(0.1491) == "akkkk");
  CHECK(plan(0.1461) == "mkkkk");
  CHECK(plan(0.1421) == "mmkkk");
  CHECK(plan(0.1301) == "mmmmm");
  CHECK(plan(0.1291) == "rrmmm");
  CHECK(plan(0.1215) == "rrrbm");
  CHECK(plan(0.1141) == "rrrrr");
  CHECK(asked < 50);
  try {
    (void)plan(0.1);
    FAIL("no error");
  } catch (const Error& error) {
    CHECK(
        std::string(error.what())
            .find("recompute.memory_gb = 0.1 is too little: a step of this rank takes at least "
                  "0.114 GB") == 0
    );
  }
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
  llama.set("sinks", true);
  llama.set("attention_gate", true);
  llama.set("activation", "swiglu_clamped");
  Table shared = common; // attention and feed-forward read one norm
  shared.set("positions", "rope");
  shared.set("parallel_residual", true);
  shared.set("shared_norm", true);
  for (const auto& [name, fields] : {std::pair{"gpt", common}, {"llama", llama}, {"gpt", shared}}) {
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
          {"selective", {{"parts", Value::Array{"attention"}}}},
          {"selective", {{"parts", Value::Array{"attention", "mlp"}}}},
          {"selective", {{"parts", Value::Array{"attention", "mlp", "norms"}}}},
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
