// Mixtures of experts under layouts, both dispatchers, against one rank.

#include "core/conformance/layout_trial.hpp"
#include "core/mesh/threads.hpp"
#include "megahost/error.hpp"
#include "megahost/gradients.hpp"
#include "megahost/nn/experts.hpp"
#include "megahost/strategy.hpp"
#include "tests/dist/small_recipe.hpp"
#include "tests/nn/bench.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/autograd.h>

#include <doctest/doctest.h>

#include <string>
#include <vector>

namespace mixture_tests {

using namespace mh;

namespace {

std::vector<std::string> tiny(std::vector<std::string> more) {
  auto settings = small_mixture();
  more.insert(more.begin(), {"model.vocab=500", "model.seq_length=48", "model.init_std=0.2"});
  settings.insert(settings.end(), more.begin(), more.end());
  return settings;
}

/// Compares layouts with one rank, in float64 to 1e-12.
void check(const std::vector<std::string>& more, const std::vector<std::string>& layouts) {
  Host& host = small_host();
  const auto model = tiny(more);
  const TrialOptions options{.dtype = at::kDouble, .steps = 2};
  const auto one = trial_on_threads(small_recipe(model, ""), host, options);
  CHECK(one.numbers.at("lm loss") > 1);
  for (const auto& layout : layouts) {
    CAPTURE(layout);
    const auto other = trial_on_threads(small_recipe(model, layout), host, options);
    const auto difference = compare_trials(one, other, 1e-12, nullptr);
    CAPTURE(difference.where);
    CAPTURE(difference.worst);
    CHECK(difference.within());
  }
}

std::vector<std::string> both_ways(const std::vector<std::string>& layouts) {
  std::vector<std::string> all = layouts;
  for (const auto& layout : layouts) {
    all.push_back(layout + ",expert_dispatch=all_gather");
  }
  return all;
}

} // namespace

TEST_CASE("experts 2, 4 and 8 over data ranks") {
  check(
      {}, both_ways({"expert=2,data=2", "expert=2,data=4", "expert=4,data=4", "expert=8,data=8"})
  );
}

TEST_CASE("experts with tensor, sequence, context, pipeline and zero") {
  check(
      {},
      both_ways(
          {"tensor=2",
           "tensor=2,expert=2",
           "tensor=2,sequence=true,expert=2",
           "tensor=2,sequence=true,data=2,expert=4,zero=1",
           "tensor=2,data=2,expert=2,expert_tensor=2",
           "context=2,expert=2",
           "context=2,tensor=2,sequence=true,expert=4",
           "pipeline=2,data=2,expert=2",
           "pipeline=2,data=2,expert=2,schedule=zb-h1",
           "expert=2,data=4,zero=1",
           "expert=2,data=4,zero=2"}
      )
  );
}

TEST_CASE("experts 4 and 8 where tensor, context, pipeline and zero make their ranks") {
  check(
      {"model.kv_heads=4"},
      {"tensor=2,data=4,expert=8,expert_dispatch=all_gather",
       "tensor=4,sequence=true,data=2,expert=8,zero=1",
       "context=2,data=4,expert=8,zero=2",
       "context=2,tensor=2,sequence=true,data=2,expert=8,expert_dispatch=all_gather",
       "pipeline=2,tensor=2,sequence=true,data=2,expert=4",
       "pipeline=2,context=2,data=2,expert=4,schedule=zb-h1",
       "expert=4,data=4,zero=3"}
  );
}

TEST_CASE("experts that are cut: expert tensor 2, and 1 under tensor 2") {
  check(
      {},
      both_ways(
          {"tensor=2,expert_tensor=2",
           "data=2,expert_tensor=2",
           "data=4,expert=2,expert_tensor=2",
           "tensor=2,sequence=true,data=2,expert=2,expert_tensor=2"}
      )
  );
}

TEST_CASE("experts with biases in the blocks of a GPT, the token after the next predicted, too") {
  check(
      {"model.norm=layernorm",
       "model.activation=gelu",
       "model.positions=learned",
       "model.bias=true",
       "model.tied=true",
       "model.shared_hidden=24",
       "model.z_weight=0.001",
       "model.mtp_layers=1"},
      both_ways(
          {"expert=2,data=2",
           "tensor=2,expert=2",
           "tensor=2,sequence=true,expert_tensor=2",
           "tensor=2,sequence=true,data=2,expert=2,expert_tensor=2,zero=1",
           "context=2,pipeline=2,expert=2",
           "expert=2,data=4,zero=3"}
      )
  );
}

TEST_CASE("capacity drops the same tokens in every layout, recomputed too") {
  const std::vector<std::string> layouts{
      "expert=2,data=2",
      "expert=2,data=2,expert_dispatch=all_gather",
      "context=2,expert=2",
      "tensor=2,sequence=true,context=2,expert=4,expert_dispatch=all_gather",
      "tensor=2,expert=2",
      "pipeline=2,data=2,expert=2"};
  check(
      {"model.capacity_factor=0.7", "model.capacity_drop=probability", "recompute.use=full"},
      layouts
  );
  check(
      {"model.capacity_factor=1.2", "model.capacity_drop=position", "model.capacity_pad=true"},
      layouts
  );
}

TEST_CASE("every router and balance, shared experts, few experts that most ranks' tokens choose") {
  const std::vector<std::string> layouts{
      "expert=2,data=2", "tensor=2,sequence=true,context=2,expert=4"};
  check(
      {"model.router=sigmoid",
       "model.router_groups=4",
       "model.router_groups_chosen=2",
       "model.router_scale=2.5",
       "model.balance=[\"bias\", \"sequence\"]",
       "model.balance_bias_rate=0.05",
       "model.z_weight=0.01",
       "model.shared_hidden=24",
       "model.shared_gate=true"},
      layouts
  );
  check(
      {"model.router=softmax_topk",
       "model.experts_per_token=1",
       "model.moe_pattern=[\"dense\", \"moe\"]"},
      layouts
  );
}

TEST_CASE(
    "latent attention and multi-token prediction with every strategy, in a mixture as DeepSeek-V3's"
) {
  check(
      {"model.layers=3",
       "model.kv_rank=20",
       "model.q_rank=24",
       "model.rope_head_dim=2",
       "model.v_head_dim=3",
       "model.first_dense=1",
       "model.router=sigmoid",
       "model.router_groups=4",
       "model.router_groups_chosen=2",
       "model.shared_hidden=24",
       "model.balance=[\"bias\", \"sequence\"]",
       "model.mtp_layers=2",
       "model.mtp_loss_weight=0.7"},
      {"tensor=2",
       "tensor=4,sequence=true,expert=4",
       "context=2,tensor=2,sequence=true,expert=2",
       "context=2,context_method=all_to_all,expert=2",
       "pipeline=3,data=2,expert=2",
       "tensor=2,data=2,zero=3,recompute.use=full"}
  );
}

TEST_CASE("attention sinks, windows and clamped gates with every strategy, as in GPT-OSS") {
  check(
      {"model.kv_heads=4",
       "model.sinks=true",
       "model.activation=swiglu_clamped",
       "model.bias=true",
       "model.window=8",
       "model.window_pattern=[\"window\", \"global\"]",
       "model.rope_scaling=yarn",
       "model.rope_factor=4",
       "model.rope_original_length=16",
       "model.rope_truncate=false"},
      {"tensor=2",
       "tensor=4,sequence=true,expert=4",
       "context=2,tensor=2,sequence=true,expert=2",
       "context=2,context_method=all_gather,expert=2",
       "context=2,context_method=all_to_all,expert=2",
       "pipeline=2,data=2,expert=2",
       "data=2,expert_tensor=2",
       "tensor=2,data=2,zero=3,recompute.use=full"}
  );
}

namespace {

/// The experts' output for `x` if all tokens choose expert 0, and the gradients of x and of the
/// experts' second GEMMs.
struct Lopsided {
  at::Tensor y, dx, ddown;
};

Lopsided all_to_one(const Mesh& mesh, const Rules& rules, const at::Tensor& x) {
  ParameterStore store;
  Builder builder(
      store, {.mesh = &mesh, .rules = &rules, .dtype = at::kDouble, .seq = 6, .microbatch = 4}
  );
  const Experts experts(
      builder,
      {.embed = {axis::embed, x.size(1)}, .experts = 8, .hidden = 10, .std = 0.5, .out_std = 0.5}
  );
  Gradients gradients(store, mesh);
  const Batch batch{.arrays = {}, .samples = {0}, .seq = 6, .batch = 4};
  StepContext context(mesh, rules, batch);
  const Routing routing{
      at::zeros({x.size(0), 1}, at::kLong), at::ones({x.size(0), 1}, at::kDouble)};
  const at::Tensor in = x.clone().requires_grad_();
  const at::Tensor y = rules.experts == nullptr
                           ? experts.mixed(in, routing, 0, context)
                           : rules.experts->mixed(in, routing, 0, experts, context);
  torch::autograd::backward({y.square().sum()}, {});
  return {y.detach(), in.grad(), store.all().back().main_grad.select(0, 0)};
}

} // namespace

TEST_CASE("ranks whose experts no token chooses") {
  const at::Tensor x = test::filled({4 * 6, 12}, "x");
  const Rules none;
  const auto one = all_to_one(Mesh(), none, x);
  for (const char* dispatch : {"all_to_all", "all_gather"}) {
    const auto strategy = small_host().make<Strategy>(
        "expert", Table{{"expert_dispatch", dispatch}}, Strategy::Args{}
    );
    run_ranks({.dp = 4, .ep = 4}, [&](const Mesh& mesh) {
      Rules rules;
      strategy->rules(rules);
      const int64_t rank = mesh.coordinate(MeshAxis::dp);
      const auto mine = all_to_one(mesh, rules, x.narrow(0, 6 * rank, 6));
      const auto same = [](const at::Tensor& a, const at::Tensor& b) {
        return (a - b).norm().item<double>() <= 1e-12 * b.norm().item<double>();
      };
      CHECK(same(mine.y, one.y.narrow(0, 6 * rank, 6)));
      CHECK(same(mine.dx, one.dx.narrow(0, 6 * rank, 6)));
      const bool busy = mesh.coordinate(MeshAxis::ep) == 0;
      CHECK((busy ? same(mine.ddown, one.ddown) : mine.ddown.abs().sum().item<double>() == 0));
    });
  }
}

} // namespace mixture_tests
