// Whole runs with what an optimizer and a schedule may be told: the same bits after a resume, and
// sentences about what applies.

#include "runs.hpp"

#include <ATen/TensorOperators.h>

#include <doctest/doctest.h>

#include <functional>
#include <sstream>

namespace {

/// Trains the recipe in one go, and in two parts with a stop after `stop` steps.
void check_resume(
    mh::Recipe recipe, const runs::Folder& folder, const std::string& name, int64_t stop
) {
  CAPTURE(name);
  runs::Lines output;
  recipe.checkpoint.dir = folder / (name + "-whole");
  const auto whole = runs::train(recipe, output);
  const auto expected = runs::tensors(recipe.checkpoint.dir, whole.step);
  const auto expected_metrics = runs::metrics(recipe.checkpoint.dir);
  REQUIRE(expected.size() > 10000);
  recipe.checkpoint.dir = folder / (name + "-parts");
  recipe.train.exit_iters = stop;
  CHECK(runs::train(recipe, output).step == stop);
  recipe.train.exit_iters.reset();
  runs::Lines resumed;
  CHECK(runs::train(recipe, resumed, /*resume=*/true).step == whole.step);
  CHECK(runs::tensors(recipe.checkpoint.dir, whole.step) == expected);
  CHECK(runs::metrics(recipe.checkpoint.dir) == expected_metrics);
}

/// A number of each line of metrics.jsonl.
std::vector<double> series(const runs::fs::path& run, const std::string& key) {
  std::vector<double> values;
  for (const auto& line : runs::metrics(run)) {
    const auto at = line.find("\"" + key + "\":");
    values.push_back(std::stod(line.substr(at + key.size() + 3)));
  }
  return values;
}

} // namespace

TEST_CASE("every optimizer goes on bit for bit, its state in either format") {
  const runs::Folder folder;
  const std::vector<std::pair<std::string, std::function<void(mh::Recipe&)>>> kinds{
      {"adam", [](mh::Recipe& r) { r.optimizer.use = "adam"; }},
      {"sgd",
       [](mh::Recipe& r) {
         r.optimizer.use = "sgd";
         r.optimizer.options = mh::Table{{"momentum", 0.9}, {"nesterov", true}};
       }},
      {"muon", [](mh::Recipe& r) { r.optimizer.use = "muon"; }},
      {"lion", [](mh::Recipe& r) { r.optimizer.use = "lion"; }},
      {"adafactor", [](mh::Recipe& r) { r.optimizer.use = "adafactor"; }},
      {"adafactor-rounded",
       [](mh::Recipe& r) {
         r.optimizer.use = "adafactor";
         r.optimizer.options = mh::Table{{"beta1", 0.9}};
         r.optimizer.state_dtype = "bf16";
         r.optimizer.stochastic_rounding = true;
         r.optimizer.master_weights = false;
         r.precision = "bf16";
       }},
      {"soap",
       [](mh::Recipe& r) {
         r.optimizer.use = "soap";
         r.optimizer.options = mh::Table{{"precondition_frequency", 2}};
       }},
      {"shampoo-rounded",
       [](mh::Recipe& r) {
         r.optimizer.use = "shampoo";
         r.optimizer.state_dtype = "bf16"; // that of vectors
         r.optimizer.stochastic_rounding = true;
         r.optimizer.master_weights = false;
         r.precision = "bf16";
       }},
      {"schedule-free", [](mh::Recipe& r) { r.optimizer.use = "schedule_free_adamw"; }},
      {"schedule-free-bf16",
       [](mh::Recipe& r) {
         r.optimizer.use = "schedule_free_adamw";
         r.optimizer.state_dtype = "bf16";
         r.precision = "bf16";
         r.train.eval_interval = 5; // the parameters are others for a while
       }},
      {"bf16-state", [](mh::Recipe& r) { r.optimizer.state_dtype = "bf16"; }},
      {"rounded",
       [](mh::Recipe& r) {
         r.optimizer.state_dtype = "bf16";
         r.optimizer.stochastic_rounding = true;
         r.optimizer.use = "muon";
       }},
      {"no-masters",
       [](mh::Recipe& r) {
         r.precision = "bf16";
         r.optimizer.master_weights = false;
         r.optimizer.stochastic_rounding = true;
       }},
      {"frozen",
       [](mh::Recipe& r) {
         auto& group = r.optimizer.groups.emplace_back();
         group.match = {"layers.0.*", "embedding.*"};
         group.frozen = true;
         r.precision = "bf16";
       }},
      {"decay", [](mh::Recipe& r) {
         r.optimizer.weight_decay_schedule = "cosine";
         r.lr_schedule = {"wsd", mh::Table{{"warmup_iters", 2}, {"cooldown_iters", 4}}};
       }}};
  for (const auto& [name, set] : kinds) {
    auto recipe = runs::recipe(folder / name);
    set(recipe);
    check_resume(recipe, folder, name, 5);
  }
}

TEST_CASE("optimizers learn, with bf16 weights alone, too") {
  const runs::Folder folder;
  for (const std::string name : {"adam", "sgd", "muon", "adamw", "adafactor", "soap", "shampoo"}) {
    auto recipe = runs::recipe(folder / name);
    recipe.model.use = "llama";
    recipe.model.options = mh::Table{{"layers", 2}, {"hidden", 32}, {"heads", 2}};
    recipe.optimizer.use = name;
    recipe.precision = "bf16";
    recipe.optimizer.master_weights = name == "sgd";
    recipe.optimizer.stochastic_rounding = name != "sgd";
    recipe.optimizer.state_dtype = name == "sgd" ? "fp32" : "bf16";
    if (name == "adafactor") {
      recipe.optimizer.options = mh::Table{{"beta1", 0.9}, {"scale_parameter", false}};
    }
    if (name == "sgd") {
      recipe.optimizer.lr = 0.3;
      recipe.optimizer.options = mh::Table{{"momentum", 0.9}};
    }
    recipe.train.iters = 60;
    recipe.batch.global = 16;
    recipe.batch.micro = 8;
    runs::Lines output;
    const auto summary = runs::train(recipe, output);
    CAPTURE(name);
    CHECK(*summary.loss < 2.2); // from ln 20 = 3.0, towards ln 4 = 1.4
    CHECK(output.say("without masters") == (name != "sgd"));
  }
}

TEST_CASE("schedule-free training evaluates and saves the average, and goes on as if it had not") {
  const runs::Folder folder;
  auto recipe = runs::recipe(folder / "seldom");
  recipe.optimizer.use = "schedule_free_adamw";
  recipe.train.eval_interval = 12;
  runs::Lines output;
  const auto seldom = runs::train(recipe, output);
  recipe.checkpoint.dir = folder / "often";
  recipe.train.eval_interval = 1;
  const auto often = runs::train(recipe, output);
  CHECK(often.loss == seldom.loss);
  CHECK(runs::tensors(folder / "often", 12) == runs::tensors(folder / "seldom", 12));
  // Another optimizer, at a rate of 0, evaluates what the checkpoint holds.
  auto plugins = runs::host();
  recipe.optimizer.use = "sgd";
  recipe.optimizer.lr = 0;
  recipe.lr_schedule = {"constant", mh::Table{}};
  recipe.train.iters = 1;
  recipe.checkpoint.dir = folder / "given";
  recipe.load.from = (folder / "seldom").string();
  const auto given =
      mh::train(recipe, plugins, {.allow_change = {"optimizer"}, .closing = false}, output);
  REQUIRE(given.validation_loss.has_value());
  CHECK(*given.validation_loss == *seldom.validation_loss);
}

TEST_CASE("a batch that grows: samples, steps and the resumed rest") {
  const runs::Folder folder;
  auto recipe = runs::recipe(folder / "a");
  recipe.batch = {
      .global = 8, .micro = 2, .rampup_start = 2, .rampup_increment = 2, .rampup_samples = 18};
  recipe.train.iters.reset();
  recipe.train.samples = 60;
  recipe.lr_schedule = {"cosine", mh::Table{{"warmup_samples", 6}}};
  runs::Lines output;
  const auto summary = runs::train(recipe, output);
  CHECK(output.say("growing from 2 by 2 over 18 samples to 8 samples"));
  // 2 until 6, 4 until 12, 6 until 18, 8
  const std::vector<double> expected{2, 4, 6, 10, 14, 20, 28, 36, 44, 52, 60};
  CHECK(series(folder / "a", "samples") == expected);
  CHECK(summary.step == static_cast<int64_t>(expected.size()));
  const auto rates = series(folder / "a", "lr");
  CHECK(rates[0] == 0);
  CHECK(rates[1] == doctest::Approx(recipe.optimizer.lr / 3));
  CHECK(rates[3] == doctest::Approx(recipe.optimizer.lr));
  check_resume(recipe, folder, "ramp", 4);

  recipe.batch.rampup_increment = 3;
  runs::Lines other;
  CHECK_THROWS_WITH_AS(
      (void)runs::train(recipe, other),
      "batch.rampup_increment 3 is not divisible by batch.micro 2 times data parallel 1",
      mh::Error
  );
}

TEST_CASE("a resumed run goes on with the recipe's rates, or with the checkpoint's if told so") {
  const runs::Folder folder;
  for (const std::string whose : {"recipe", "checkpoint"}) {
    auto recipe = runs::recipe(folder / whose);
    recipe.optimizer.weight_decay = 0.2;
    recipe.train.exit_iters = 4;
    runs::Lines output;
    (void)runs::train(recipe, output);
    const auto before = series(folder / whose, "lr");
    recipe.train.exit_iters = 6;
    recipe.optimizer.lr = 5e-3; // half of what it was
    recipe.optimizer.weight_decay = 0.1;
    recipe.lr_schedule.on_resume = whose;
    runs::Lines resumed;
    (void)runs::train(recipe, resumed, /*resume=*/true);
    CAPTURE(whose);
    const bool recipe_wins = whose == "recipe";
    CHECK(
        resumed.say("learning rate and weight decay go on as the recipe says: optimizer.lr 0.005 "
                    "(checkpoint 0.01), optimizer.weight_decay 0.1 (checkpoint 0.2); "
                    "lr_schedule.on_resume = \"checkpoint\" keeps the checkpoint's") == recipe_wins
    );
    CHECK(
        resumed.say(
            "learning rate and weight decay go on as the checkpoint says: optimizer.lr 0.01 "
            "(recipe 0.005), optimizer.weight_decay 0.2 (recipe 0.1)"
        ) == !recipe_wins
    );
    // what the whole run would have had at step 5
    auto whole = runs::recipe(folder / (whose + "-whole"));
    runs::Lines other;
    (void)runs::train(whole, other);
    const double expected = series(whole.checkpoint.dir, "lr").at(4);
    CHECK(
        series(folder / whose, "lr").at(4) == doctest::Approx(recipe_wins ? expected / 2 : expected)
    );
    // and the next resume has the same choice
    recipe.train.exit_iters.reset();
    recipe.lr_schedule.on_resume = "checkpoint";
    runs::Lines again;
    (void)runs::train(recipe, again, /*resume=*/true);
    CHECK(again.say("as the checkpoint says") == !recipe_wins);
  }
}

TEST_CASE("options that do nothing are said to") {
  const runs::Folder folder;
  auto recipe = runs::recipe(folder / "a");
  recipe.train.iters = 3;
  recipe.optimizer.offload = true;
  recipe.optimizer.master_weights = false;
  recipe.guards.compare_copies = 2;
  runs::Lines output;
  (void)runs::train(recipe, output);
  CHECK(output.say("optimizer.offload does nothing on the CPU"));
  CHECK(output.say("optimizer.master_weights = false does nothing"));
  CHECK(output.say("guards.compare_copies does nothing on one rank and under ZeRO-3"));

  auto bad = runs::recipe(folder / "b");
  bad.optimizer.groups.emplace_back().match = {"layer.*"};
  try {
    (void)runs::train(bad, output);
    FAIL("no error");
  } catch (const mh::Error& error) {
    CHECK(error.exit_code() == mh::exit_code::recipe);
    CHECK(std::string(error.hint()).find("did you mean \"layers.*\"?") != std::string::npos);
  }
  CHECK_FALSE(runs::fs::exists(folder / "b"));
}
