#include "core/step/update_schedule.hpp"
#include "megahost/lr_schedule.hpp"
#include "megahost/recompute.hpp"
#include "megahost/strategy.hpp"
#include "megatron.hpp"
#include "runs.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <optional>

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
    rates.push_back(schedule->lr({.updates = n, .samples = 10 * n}));
  }
  return rates;
}

} // namespace

TEST_CASE("learning rates are Megatron's") {
  auto host = runs::host();
  for (const auto& [schedule, cooldown, expected] : megatron::kTables) {
    const bool decays = schedule != "constant";
    for (const bool by_samples : {false, true}) {
      const int64_t unit = by_samples ? 10 : 1;
      const std::string word = by_samples ? "_samples" : "_iters";
      Table options{{"warmup" + word, 2 * unit}, {"warmup_init", 1e-5}};
      if (decays) {
        options.set("decay" + word, 10 * unit);
        options.set("min_lr", 1e-4);
      }
      if (!cooldown.empty()) {
        options.set("cooldown", std::string(cooldown));
        options.set("cooldown" + word, 3 * unit);
      }
      const mh::LrSchedule::Args args{.lr = 1e-3, .train_iters = 40};
      const auto found = rates(host, std::string(schedule), options, args, 13);
      CAPTURE(schedule);
      CAPTURE(cooldown);
      CAPTURE(by_samples);
      for (size_t n = 0; n < 13; ++n) {
        CHECK(found[n] == doctest::Approx(expected.at(n)).epsilon(1e-12));
      }
    }
  }
}

TEST_CASE("lengths of a learning-rate schedule may be shares, and default to the run's") {
  auto host = runs::host();
  const mh::LrSchedule::Args steps{.lr = 1e-3, .train_iters = 20};
  const mh::LrSchedule::Args samples{.lr = 1e-3, .train_samples = 200};
  const Table given{{"warmup_iters", 5}, {"cooldown_iters", 10}, {"decay_iters", 20}};
  const Table shares{{"warmup_share", 0.25}, {"cooldown_share", 0.5}};
  const auto expected = rates(host, "wsd", given, steps, 25);
  CHECK(rates(host, "wsd", shares, steps, 25) == expected);
  const auto by_samples = rates(host, "wsd", shares, samples, 25);
  for (size_t n = 0; n < 25; ++n) {
    CHECK(by_samples[n] == doctest::Approx(expected[n]).epsilon(1e-12));
  }
  CHECK(expected[0] == 0);
  CHECK(expected[5] == 1e-3);
  CHECK(expected[10] == 1e-3);
  CHECK(expected[20] == 0);
  const auto constant = rates(host, "constant", {{"warmup_iters", 4}}, steps, 8);
  CHECK(constant[0] == 0);
  CHECK(constant[1] == doctest::Approx(2.5e-4));
  CHECK(constant[4] == 1e-3);
  CHECK(constant[7] == 1e-3);
  CHECK(rates(host, "constant", {}, steps, 1)[0] == 1e-3);
  const auto root = rates(host, "inverse_sqrt", {}, steps, 10);
  CHECK(root[0] == 1e-3);
  CHECK(root[9] == doctest::Approx(1e-3 / 3));
}

TEST_CASE("weight decay goes from its start to its end over the run, as Megatron's") {
  auto host = runs::host();
  const runs::Folder folder;
  auto recipe = runs::recipe(folder / "a");
  recipe.lr_schedule = {{"constant", Table{}}};
  recipe.optimizer.weight_decay = 0.1;
  recipe.optimizer.weight_decay_start = 0.01;
  const auto at = [&](const std::string& form, int64_t updates) {
    recipe.optimizer.weight_decay_schedule = form;
    return mh::UpdateSchedule(mh::schedule_terms(recipe), host)
        .weight_decay({.updates = updates, .samples = 10 * updates});
  };
  for (const bool by_samples : {false, true}) {
    recipe.train.iters = by_samples ? std::nullopt : std::optional<int64_t>(10);
    recipe.train.samples = by_samples ? std::optional<int64_t>(100) : std::nullopt;
    for (int64_t n = 0; n < 13; ++n) {
      CHECK(
          at("cosine", n) ==
          doctest::Approx(megatron::kWeightDecay.at(static_cast<size_t>(n))).epsilon(1e-12)
      );
    }
    CHECK(at("linear", 5) == doctest::Approx(0.055));
    CHECK(at("linear", 12) == doctest::Approx(0.1));
    CHECK(at("constant", 0) == 0.1);
  }
}

TEST_CASE("the batch grows as Megatron's") {
  const mh::Recipe::Batch batch{
      .global = 64, .micro = 2, .rampup_start = 16, .rampup_increment = 8, .rampup_samples = 240};
  for (const auto& [samples, expected] : megatron::kRampUp) {
    CHECK(batch.at(samples) == expected);
  }
  mh::Recipe recipe;
  recipe.batch = batch;
  recipe.train.samples = 400;
  int64_t consumed = 0;
  int64_t steps = 0;
  for (; consumed + batch.at(consumed) <= 400; ++steps) {
    consumed += batch.at(consumed);
  }
  CHECK(recipe.iterations() == steps);
  CHECK(steps > 400 / 64 + 1);
}

TEST_CASE("contradictions in a learning-rate schedule are named") {
  auto host = runs::host();
  using Schedule = mh::LrSchedule;
  const Schedule::Args args{.lr = 1e-3, .train_iters = 10};
  const auto refused = [&](const Table& options) {
    return runs::refusal<Schedule>(host, "cosine", options, args);
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
  // An architecture may name others; which a recipe may name, tests/recipe/strategies.cpp says.
  CHECK(host.make<mh::RecomputePolicy>(
                "selective", Table{{"parts", mh::Value::Array{"token_shift"}}}, {.layers = 4}
  )
            ->keep(0)
            .redoes("token_shift"));
  CHECK(
      runs::refusal<mh::RecomputePolicy>(
          host, "selective", {{"parts", mh::Value::Array{}}}
      ).find("names no part") != std::string::npos
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
