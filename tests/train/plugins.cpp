#include "megahost/lr_schedule.hpp"
#include "megahost/optimizer.hpp"
#include "megahost/recompute.hpp"
#include "megahost/strategy.hpp"
#include "runs.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/linspace.h>
#include <ATen/ops/zeros_like.h>

#include <doctest/doctest.h>

#include <array>
#include <cmath>

namespace {

using mh::Table;

std::vector<double> rates(
    mh::Host& host,
    const std::string& name,
    const Table& options,
    const mh::LrSchedule::Args& args,
    int64_t count
) {
  const auto schedule = host.make<mh::LrSchedule>(name, options, args);
  std::vector<double> rates;
  for (int64_t n = 0; n < count; ++n) {
    rates.push_back(schedule->lr(n));
  }
  return rates;
}

mh::UpdateItem item(mh::Optimizer& optimizer, double weight_decay, double multiplier = 1) {
  mh::UpdateItem item;
  item.weight = at::linspace(-1, 1, 37);
  item.gradient = at::linspace(0.5, -0.25, 37);
  item.weight_decay = weight_decay;
  item.lr_multiplier = multiplier;
  for (const auto& spec : optimizer.state()) {
    item.state.push_back(at::zeros_like(item.weight, item.weight.options().dtype(spec.dtype)));
  }
  return item;
}

template <class Base>
std::string refusal(
    mh::Host& host,
    const std::string& name,
    const Table& options,
    const typename Base::Args& args = {}
) {
  try {
    (void)host.make<Base>(name, options, args);
  } catch (const mh::Error& error) {
    return error.what();
  }
  return "accepted";
}

} // namespace

TEST_CASE("learning rates are Megatron's") {
  auto host = runs::host();
  const mh::LrSchedule::Args args{.lr = 1e-3, .train_iters = 10, .global_batch = 10};
  // OptimizerParamScheduler of megatron-core 0.16.1: initial 1e-5, warm-up 20, decay 100 samples
  const std::array<double, 13> cosine{
      1e-05,
      0.000505,
      0.001,
      0.000965745789630079,
      0.0008681980515339464,
      0.0007222075445642905,
      0.00055,
      0.0003777924554357096,
      0.00023180194846605365,
      0.00013425421036992097,
      0.0001,
      0.0001,
      0.0001};
  const std::array<double, 13> linear{
      1e-05,
      0.000505,
      0.001,
      0.0008875,
      0.000775,
      0.0006625,
      0.00055,
      0.0004375,
      0.000325,
      0.0002125,
      0.0001,
      0.0001,
      0.0001};
  const Table iterations{{"warmup_iters", 2}, {"warmup_init", 1e-5}, {"min_lr", 1e-4}};
  const Table samples{
      {"warmup_samples", 20}, {"decay_samples", 100}, {"warmup_init", 1e-5}, {"min_lr", 1e-4}};
  for (const auto& options : {iterations, samples}) {
    const auto a = rates(host, "cosine", options, args, 13);
    const auto b = rates(host, "linear", options, args, 13);
    for (size_t n = 0; n < 13; ++n) {
      CHECK(a[n] == doctest::Approx(cosine[n]).epsilon(1e-12));
      CHECK(b[n] == doctest::Approx(linear[n]).epsilon(1e-12));
    }
  }
  const auto constant = rates(host, "constant", {{"warmup_iters", 4}}, args, 8);
  CHECK(constant[0] == 0);
  CHECK(constant[1] == doctest::Approx(2.5e-4));
  CHECK(constant[4] == 1e-3);
  CHECK(constant[7] == 1e-3);
  CHECK(rates(host, "constant", {}, args, 1)[0] == 1e-3);
}

TEST_CASE("contradictions in a learning-rate schedule are named") {
  auto host = runs::host();
  using Schedule = mh::LrSchedule;
  const Schedule::Args args{.lr = 1e-3, .train_iters = 10, .global_batch = 10};
  const auto refused = [&](const Table& options) {
    return refusal<Schedule>(host, "cosine", options, args);
  };
  CHECK(
      refused({{"warmup_iters", 1}, {"warmup_samples", 5}}).find("in iterations and in samples") !=
      std::string::npos
  );
  CHECK(
      refused({{"decay_iters", 9}, {"decay_samples", 50}}).find("in iterations and in samples") !=
      std::string::npos
  );
  CHECK(
      refused({{"warmup_iters", 8}, {"decay_iters", 8}}).find("does not end before") !=
      std::string::npos
  );
  CHECK(refused({{"warmup_iters", 10}}).find("warms up for 10") != std::string::npos);
  CHECK(refused({{"min_lr", 0.1}}).find("min_lr 0.1 is above optimizer.lr") != std::string::npos);
  CHECK(
      refused({{"warmup_init", 0.1}}).find("warmup_init 0.1 is above optimizer.lr") !=
      std::string::npos
  );
}

TEST_CASE("adamw follows its paper") {
  auto host = runs::host();
  const auto adamw = host.make<mh::Optimizer>("adamw", Table{{"eps", 1e-3}});
  for (const double decay : {0.0, 0.1}) {
    auto updated = item(*adamw, decay, 0.5);
    auto w = updated.weight.to(at::kDouble);
    auto m = at::zeros_like(w);
    auto v = at::zeros_like(w);
    for (int64_t step = 1; step <= 3; ++step) {
      const double scale = 0.25;
      updated.gradient = at::linspace(0.5, -0.25, 37);
      const auto g = updated.gradient.to(at::kDouble) * scale;
      adamw->update({&updated, 1}, {.step = step, .lr = 0.02, .gradient_scale = scale});
      m = m * 0.9 + g * 0.1;
      v = v * 0.95 + g * g * 0.05;
      const auto direction =
          (m / (1 - std::pow(0.9, step))) / ((v / (1 - std::pow(0.95, step))).sqrt() + 1e-3);
      w = w * (1 - 0.01 * decay) - direction * 0.01;
    }
    CHECK(at::allclose(updated.weight.to(at::kDouble), w, 1e-5, 1e-6));
    CHECK(at::allclose(updated.state[1].to(at::kDouble), v, 1e-5, 1e-9));
  }
  CHECK(
      refusal<mh::Optimizer>(
          host, "adamw", {{"betas", mh::Value::Array{0.9}}}
      ).find("two numbers") != std::string::npos
  );
  CHECK(
      refusal<mh::Optimizer>(
          host, "adamw", {{"betas", mh::Value::Array{0.9, 1.0}}}
      ).find("below 1") != std::string::npos
  );
}

TEST_CASE("sgd with and without momentum") {
  auto host = runs::host();

  struct Case {
    double momentum;
    bool nesterov;
  };

  for (const auto& [momentum, nesterov] : {Case{0, false}, Case{0.9, false}, Case{0.9, true}}) {
    const auto sgd =
        host.make<mh::Optimizer>("sgd", Table{{"momentum", momentum}, {"nesterov", nesterov}});
    CHECK(sgd->state().size() == (momentum > 0 ? 1U : 0U));
    auto updated = item(*sgd, 0.01);
    auto w = updated.weight.to(at::kDouble);
    auto v = at::zeros_like(w);
    for (int64_t step = 1; step <= 3; ++step) {
      updated.gradient = at::linspace(0.5, -0.25, 37);
      const auto g = updated.gradient.to(at::kDouble) * 0.5 + w * 0.01;
      sgd->update({&updated, 1}, {.step = step, .lr = 0.1, .gradient_scale = 0.5});
      v = v * momentum + g;
      w = w - (nesterov ? g + v * momentum : v) * 0.1;
    }
    CHECK(at::allclose(updated.weight.to(at::kDouble), w, 1e-5, 1e-6));
  }
  CHECK(
      refusal<mh::Optimizer>(host, "sgd", {{"nesterov", true}}).find("momentum above 0") !=
      std::string::npos
  );
}

TEST_CASE("recompute policies") {
  auto host = runs::host();
  CHECK(host.make<mh::RecomputePolicy>("none", {}, {.layers = 4})->keep(2).everything);
  CHECK_FALSE(host.make<mh::RecomputePolicy>("full", {}, {.layers = 4})->keep(3).everything);
  const auto selective = host.make<mh::RecomputePolicy>(
      "selective", Table{{"parts", mh::Value::Array{"norms", "activations"}}}, {.layers = 4}
  );
  CHECK(selective->keep(0).everything);
  CHECK(selective->keep(0).redoes("norms"));
  CHECK_FALSE(selective->keep(0).redoes("core_attention"));
  CHECK(host.make<mh::RecomputePolicy>("selective")->keep(0).redoes("core_attention"));
  CHECK(
      refusal<mh::RecomputePolicy>(
          host, "selective", {{"parts", mh::Value::Array{"attention"}}}
      ).find("core_attention") != std::string::npos
  );
}

TEST_CASE("the data strategy splits the batch") {
  auto host = runs::host();
  mh::Rules rules;
  host.make<mh::Strategy>("data", {}, {.shape = {}})->rules(rules);
  REQUIRE(rules.tokens.size() == 1);
  CHECK(rules.tokens[0].logical == mh::axis::batch);
  CHECK(rules.tokens[0].mesh == mh::MeshAxis::dp);
}
