// Routers against tables of megatron-core (router_golden.json) and against formulas.

#include "megahost/nn/router.hpp"

#include "megahost/gradients.hpp"
#include "tests/nn/bench.hpp"
#include "tests/nn/gradient.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <vector>

namespace router_tests {

using namespace mh;
using mh::test::Bench;
using mh::test::filled;

namespace {

constexpr Axis kEmbed{axis::embed, 6};

const nlohmann::json& golden() {
  static const nlohmann::json kTables = [] {
    std::ifstream file(
        std::string(std::getenv("MEGAHOST_SOURCE")) + "/tests/nn/router_golden.json"
    );
    return nlohmann::json::parse(file);
  }();
  return kTables;
}

at::Tensor table(const char* name) {
  const auto rows = golden().at(name).get<std::vector<std::vector<double>>>();
  std::vector<double> flat;
  for (const auto& row : rows) {
    flat.insert(flat.end(), row.begin(), row.end());
  }
  return at::tensor(flat, at::kDouble).view({static_cast<int64_t>(rows.size()), -1});
}

/// The weights of a routing as [tokens, experts].
at::Tensor spread(const Routing& routing, int64_t experts) {
  const at::Tensor kept = routing.choices.ge(0);
  return at::zeros({routing.choices.size(0), experts}, routing.weights.options())
      .scatter_add(1, routing.choices.clamp_min(0), routing.weights * kept);
}

at::Tensor route(const RouterSpec& spec, const at::Tensor& logits, const at::Tensor& bias = {}) {
  return spread(choose_experts(spec, logits, bias).first, spec.experts);
}

const Loss& loss_of(const StepContext& context, const std::string& name) {
  for (const auto& loss : context.losses()) {
    if (loss.name == name) {
      return loss;
    }
  }
  FAIL("no loss ", name);
  return context.losses().front();
}

} // namespace

TEST_CASE("choices and weights are megatron-core's") {
  const at::Tensor logits = table("logits");
  const auto same = [&](const RouterSpec& spec, const char* name) {
    CAPTURE(name);
    CHECK(at::allclose(route(spec, logits), table(name), 1e-6, 1e-7));
  };
  same({.embed = kEmbed, .score = RouterScore::topk_softmax}, "post");
  same({.embed = kEmbed, .score = RouterScore::softmax_topk}, "pre");
  same({.embed = kEmbed, .score = RouterScore::sigmoid, .normalise = true}, "sig");
  same(
      {.embed = kEmbed, .score = RouterScore::softmax_topk, .groups = 4, .groups_chosen = 2}, "grp"
  );
}

TEST_CASE("the auxiliary loss and the z loss are megatron-core's") {
  Bench bench;
  const at::Tensor logits = table("logits");
  const RouterSpec spec{.embed = kEmbed, .score = RouterScore::softmax_topk};
  const auto [routing, scores] = choose_experts(spec, logits, {});
  const at::Tensor counts =
      at::zeros({8}, at::kDouble)
          .scatter_add_(0, routing.choices.reshape({-1}), at::ones({24}, at::kDouble));
  const double aux = balance_loss(scores.sum(0), counts, 2, 12, 12).item<double>();
  CHECK(1e-2 * aux == doctest::Approx(golden().at("aux").get<double>()).epsilon(1e-6));
  const double z = logits.logsumexp(-1).square().mean().item<double>();
  CHECK(1e-3 * z == doctest::Approx(golden().at("z").get<double>()).epsilon(1e-6));
}

TEST_CASE("even experts have a balance loss of 1, one busy expert as many as there are") {
  const at::Tensor even = at::ones({4}, at::kDouble);
  CHECK(balance_loss(even * 3, even * 6, 2, 12, 12).item<double>() == doctest::Approx(1));
  const at::Tensor one = at::tensor({12.0, 0.0, 0.0, 0.0});
  CHECK(balance_loss(one, one, 1, 12, 12).item<double>() == doctest::Approx(4));
}

TEST_CASE("a bias chooses, but weighs nothing; scale and normalise do") {
  const at::Tensor logits = at::tensor({2.0, 1.0, 0.0, -1.0}).to(at::kDouble).view({1, 4});
  const at::Tensor bias = at::tensor({0.0, 0.0, 0.0, 10.0}).to(at::kDouble);
  RouterSpec spec{.embed = kEmbed, .experts = 4, .score = RouterScore::sigmoid};
  const at::Tensor plain = route(spec, logits, bias);
  CHECK(plain[0][3].item<double>() == doctest::Approx(1 / (1 + std::exp(1.0))));
  CHECK(plain[0][1].item<double>() == 0);
  spec.normalise = true;
  spec.scale = 2.5;
  CHECK(route(spec, logits, bias).sum().item<double>() == doctest::Approx(2.5));
}

TEST_CASE("gradients of weights and of losses") {
  const at::Tensor logits = filled({5, 8}, "logits");
  for (const auto score :
       {RouterScore::topk_softmax, RouterScore::softmax_topk, RouterScore::sigmoid}) {
    const RouterSpec spec{
        .embed = kEmbed, .score = score, .normalise = score == RouterScore::sigmoid, .scale = 1.5};
    test::check_gradients(
        [&](const auto& in) { return choose_experts(spec, in[0], {}).first.weights; }, {logits}
    );
    test::check_gradients(
        [&](const auto& in) { return choose_experts(spec, in[0], {}).second; }, {logits}
    );
  }
}

TEST_CASE("an expert over capacity keeps the likeliest tokens, or the first") {
  // Expert 0 is chosen by tokens 0 to 3, expert 1 by tokens 0 and 3.
  const Routing routing{
      at::tensor({0, 1, 0, 2, 2, 0, 1, 0}, at::kLong).view({4, 2}),
      at::tensor({0.2, 0.8, 0.9, 0.1, 0.4, 0.6, 0.5, 0.7}, at::kDouble).view({4, 2})};
  const at::Tensor likely = kept_choices(routing, 3, 2, /*by_position=*/false);
  const auto bits = [](std::initializer_list<int64_t> values) {
    return at::tensor(std::vector<int64_t>(values), at::kLong).view({4, 2}).to(at::kBool);
  };
  CHECK(at::equal(likely, bits({0, 1, 1, 1, 1, 0, 1, 1}))); // 0.9 and 0.7 of expert 0
  const at::Tensor first = kept_choices(routing, 3, 2, /*by_position=*/true);
  CHECK(at::equal(first, bits({1, 1, 1, 1, 1, 0, 1, 0})));
  CHECK(kept_choices(routing, 3, 4, true).all().item<bool>());
}

TEST_CASE("a router's losses and metrics are those of its microbatch") {
  Bench bench; // 10 tokens
  const Router router(
      bench.builder,
      {.embed = kEmbed,
       .experts = 4,
       .sequence = true,
       .z_weight = 1e-3,
       .capacity = 0.5,
       .std = 1,
       .layers = 2}
  );
  Gradients gradients(bench.store, bench.mesh);
  auto context = bench.context();
  const at::Tensor x = filled({5, 2, 6}, "x").requires_grad_();
  const Routing routing = router.route(x, context);
  const at::Tensor logits = x.matmul(bench.store.all()[0].value.t());
  const at::Tensor scores = logits.softmax(-1);
  const at::Tensor chosen =
      at::zeros({5, 2, 4}, at::kDouble).scatter_(-1, std::get<1>(logits.topk(2, -1)), 1.0);
  const auto formula = [](const at::Tensor& p, const at::Tensor& n, double tokens) {
    return (4 / (2 * tokens * tokens) * (p * n).sum(-1)).mean().item<double>();
  };
  const auto value = [&](const char* name) { return loss_of(context, name).sum.item<double>(); };
  CHECK(
      value("load balancing loss") ==
      doctest::Approx(
          formula(scores.sum(at::IntArrayRef{0, 1}), chosen.sum(at::IntArrayRef{0, 1}), 10) / 2
      )
  );
  CHECK(
      value("sequence load balancing loss") ==
      doctest::Approx(formula(scores.sum(0), chosen.sum(0), 5) / 2)
  );
  CHECK(
      value("z loss") == doctest::Approx(logits.logsumexp(-1).square().mean().item<double>() / 2)
  );
  CHECK(loss_of(context, "z loss").weight == doctest::Approx(2e-3));
  const at::Tensor counts = chosen.sum(at::IntArrayRef{0, 1});
  CHECK(value("expert imbalance") == doctest::Approx((counts.amax() / 5).item<double>() / 2));
  CHECK(loss_of(context, "expert imbalance").weight == 0);
  // Half of 20 / 4 choices, rounded up.
  CHECK(routing.capacity == 3);
  const double dropped = (counts - counts.clamp_max(3)).sum().item<double>();
  CHECK(dropped > 0);
  CHECK(routing.choices.eq(-1).sum().item<double>() == dropped);
  CHECK(value("dropped share") == doctest::Approx(dropped / 20 / 2));
  CHECK((routing.weights * routing.choices.eq(-1)).abs().sum().item<double>() == 0);
  // The router's gradient, which it adds itself.
  const at::Tensor sum =
      loss_of(context, "load balancing loss").sum + routing.weights.square().sum();
  torch::autograd::backward({sum}, {});
  CHECK(bench.store.all()[0].main_grad.norm().item<double>() > 1e-3);
  CHECK(x.grad().norm().item<double>() > 1e-3);
}

TEST_CASE("a bias moves towards experts with few tokens, once a step, whatever came twice") {
  Bench bench;
  const Router router(
      bench.builder,
      {.embed = kEmbed,
       .experts = 4,
       .score = RouterScore::sigmoid,
       .auxiliary = false,
       .bias_rate = 0.1,
       .std = 1}
  );
  REQUIRE(bench.store.buffers().size() == 1);
  CHECK(bench.store.buffers()[0].piece.name == "bias");
  const at::Tensor& bias = bench.store.buffers()[0].value;
  const at::Tensor x = filled({5, 2, 6}, "x"), other = filled({5, 2, 6}, "other");
  at::Tensor counts = at::zeros({4}, at::kDouble);
  for (const int64_t microbatch : {0, 1, 0}) {
    auto context = bench.context({.microbatch = microbatch, .loss_count = [](const std::string&) {
                                    return 2.0;
                                  }});
    const Routing routing = router.route(microbatch == 0 ? x : other, context);
    if (counts.sum().item<double>() < 40) {
      counts.scatter_add_(0, routing.choices.reshape({-1}), at::ones({20}, at::kDouble));
    }
  }
  REQUIRE(bench.builder.step_states().size() == 1);
  auto& state = *bench.builder.step_states()[0];
  state.forget();
  state.update(bench.mesh);
  CHECK(bias.abs().sum().item<double>() == 0);
  for (const int64_t microbatch : {0, 1, 0}) {
    auto context = bench.context({.microbatch = microbatch, .loss_count = [](const std::string&) {
                                    return 2.0;
                                  }});
    (void)router.route(microbatch == 0 ? x : other, context);
  }
  state.update(bench.mesh);
  CHECK(at::allclose(bias, (counts.mean() - counts).sign() * 0.1));
  CHECK(bias.abs().sum().item<double>() > 0.1);
}

TEST_CASE("DeepSeek-V3's router and sequence loss, by its equations") {
  // arXiv:2412.19437, equations 12 to 20: 8 experts in 4 groups, of which 2, and 4 experts in them.
  constexpr int64_t kExperts = 8, kGroups = 4, kTokens = 5, kSamples = 2;
  Bench bench;
  const RouterSpec spec{
      .embed = kEmbed,
      .experts = kExperts,
      .chosen = 4,
      .score = RouterScore::sigmoid,
      .normalise = true,
      .scale = 2.5,
      .groups = kGroups,
      .groups_chosen = 2,
      .auxiliary = false,
      .sequence = true,
      .bias_rate = 0.1,
      .std = 1};
  const Router router(bench.builder, spec);
  const at::Tensor bias = bench.store.buffers()[0].value;
  bias.copy_(filled({kExperts}, "bias") * 0.3);
  auto context = bench.context();
  const at::Tensor x = filled({kTokens, kSamples, 6}, "x");
  const Routing routing = router.route(x, context);
  const at::Tensor share = spread(routing, kExperts);
  const at::Tensor logits = x.matmul(bench.store.all()[0].value.t()).view({-1, kExperts});
  double loss = 0;
  int64_t changed = 0;
  for (int64_t sample = 0; sample < kSamples; ++sample) {
    std::vector<double> f(kExperts), p(kExperts);
    for (int64_t t = 0; t < kTokens; ++t) {
      const int64_t row = t * kSamples + sample;
      std::vector<double> s(kExperts), steered(kExperts);
      double sum = 0;
      for (int64_t e = 0; e < kExperts; ++e) {
        s[e] = 1 / (1 + std::exp(-logits[row][e].item<double>()));
        steered[e] = s[e] + bias[e].item<double>();
        sum += s[e];
      }
      const auto rank = [](const std::vector<double>& values, size_t of) { // how many are better
        return std::count_if(values.begin(), values.end(), [&](double v) {
          return v > values[of];
        });
      };
      std::vector<double> group(kGroups); // groups of two experts each, both of which count
      for (size_t e = 0; e < kExperts; ++e) {
        group[e / 2] += steered[e];
      }
      std::vector<double> within = steered;
      for (size_t e = 0; e < kExperts; ++e) {
        within[e] = rank(group, e / 2) < 2 ? within[e] : -1e9;
      }
      double chosen = 0;
      for (size_t e = 0; e < kExperts; ++e) {
        chosen += rank(within, e) < 4 ? s[e] : 0;
      }
      for (size_t e = 0; e < kExperts; ++e) {
        const double weight = rank(within, e) < 4 ? 2.5 * s[e] / chosen : 0;
        CHECK(share[row][static_cast<int64_t>(e)].item<double>() == doctest::Approx(weight));
        const bool wanted = rank(s, e) < 4; // without bias and groups
        changed += wanted != (weight > 0);
        f[e] += wanted ? double(kExperts) / (4.0 * kTokens) : 0;
        p[e] += s[e] / sum / kTokens;
      }
    }
    for (size_t e = 0; e < kExperts; ++e) {
      loss += f[e] * p[e] / kSamples;
    }
  }
  CHECK(changed > 0);
  CHECK(
      loss_of(context, "sequence load balancing loss").sum.item<double>() == doctest::Approx(loss)
  );
}

} // namespace router_tests
