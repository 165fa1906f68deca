// Steps that are put together from short stages, against the same steps recorded in full.

#include "core/plan/short_stages.hpp"

#include "core/mesh/layout.hpp"
#include "core/plugin/catalogue.hpp"
#include "core/recipe/load.hpp"
#include "core/recipe/resolve.hpp"
#include "tests/dist/small_recipe.hpp"

#include <doctest/doctest.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <sstream>
#include <string>
#include <vector>

namespace short_stages_tests {

using namespace mh;

namespace {

constexpr int64_t kRanks = 64;

ReadOptions recipe_folder() {
  ReadOptions options;
  options.roots = {std::filesystem::path(std::getenv("MEGAHOST_SOURCE")) / "recipes"};
  return options;
}

/// The recipe of a preset on 64 ranks; `sets` are separated by spaces.
Recipe preset(const std::string& name, const std::string& sets) {
  LoadOptions options;
  options.roots = recipe_folder().roots;
  options.facts = {.bf16 = true, .world = kRanks};
  options.sets = {"model.preset=" + name, "batch.global=1024"};
  std::stringstream more(sets);
  for (std::string set; more >> set;) {
    options.sets.push_back(set);
  }
  const auto base =
      std::filesystem::path(std::getenv("MEGAHOST_SOURCE")) / "tests/plan/published_base.toml";
  const Loaded loaded = load_recipe(base, options);
  Host& host = small_host();
  return resolve(loaded, plugin_lookup(host), options.facts).recipe;
}

double apart(double found, double expected) {
  return std::abs(found / expected - 1);
}

void compare(const std::string& name, const std::string& sets) {
  CAPTURE(name);
  CAPTURE(sets);
  const Machine machine = find_machine("h100", recipe_folder());
  const Recipe recipe = preset(name, sets);
  const PlanTarget target{
      .recipe = recipe, .host = small_host(), .world = kRanks, .device = at::kCUDA};
  PlannedSteps steps(target);
  REQUIRE(steps.alike(recipe));
  const Plan found = ShortStages(target, machine, steps.passes(recipe)).plan(recipe, steps);
  const Plan expected = make_plan(record_step(target), recipe, machine);
  std::printf(
      "%-12s %-100s memory %+.4f%%  step %+.3f%%\n",
      name.c_str(),
      sets.c_str(),
      100 * (static_cast<double>(found.most()) / static_cast<double>(expected.most()) - 1),
      100 * (found.step.total / expected.step.total - 1)
  );
  CHECK(apart(found.step.total, expected.step.total) < 0.002);
  CHECK(apart(found.executed_flops, expected.executed_flops) < 1e-9);
  CHECK(found.model_flops == doctest::Approx(expected.model_flops));
  CHECK(found.tokens == expected.tokens);
  CHECK(found.parameters == expected.parameters);
  REQUIRE(found.stages.size() == expected.stages.size());
  for (size_t s = 0; s < found.stages.size(); ++s) {
    CAPTURE(s);
    const int64_t bytes = found.stages[s].total(), recorded = expected.stages[s].total();
    if (recipe.parallel.virtual_stages == 1) {
      CHECK(bytes == recorded);
    } else { // buckets lie across chunks in another way
      CHECK(apart(static_cast<double>(bytes), static_cast<double>(recorded)) < 0.001);
    }
  }
}

} // namespace

TEST_CASE("short stages: tensor, sequence, context and data parallel") {
  compare("llama2-70b", "parallel.tensor=8");
  compare("llama2-70b", "parallel.tensor=8 parallel.sequence=true recompute.use=selective");
  compare("llama2-70b", "parallel.tensor=4 parallel.sequence=true parallel.zero=1 batch.micro=2");
  compare("llama2-70b", "parallel.tensor=8 parallel.sequence=true parallel.zero=2");
  compare("llama2-70b", "parallel.tensor=2 parallel.zero=3 recompute.use=full");
  compare("llama2-70b", "parallel.context=4 parallel.tensor=4 parallel.zero=1");
}

TEST_CASE("short stages: pipelines of every schedule") {
  const std::string common = "parallel.tensor=4 parallel.sequence=true parallel.pipeline=4 ";
  compare("llama2-70b", common);
  compare("llama2-70b", common + "parallel.zero=1 recompute.use=full");
  compare("llama2-70b", common + "parallel.zero=1 parallel.virtual_stages=2");
  compare("llama2-70b", common + "parallel.zero=1 parallel.schedule=zb-h1");
  compare("llama2-70b", common + "parallel.schedule=zb-v parallel.virtual_stages=2");
  compare("llama2-70b", "parallel.tensor=8 parallel.pipeline=2 parallel.zero=1");
  compare("llama2-70b", "parallel.pipeline=16 parallel.zero=1 recompute.use=selective");
}

TEST_CASE("short stages: tied embeddings, experts") {
  const std::string common = "parallel.tensor=8 parallel.sequence=true parallel.pipeline=8";
  compare("gpt3-175b", common);
  compare("gpt3-175b", common + " parallel.schedule=zb-v parallel.virtual_stages=2");
  compare(
      "mixtral-8x7b", "parallel.tensor=2 parallel.expert=8 parallel.pipeline=4 parallel.zero=1"
  );
}

TEST_CASE("short stages: what a search leaves out of its memory is counted as kept") {
  const Recipe recipe = preset("llama2-70b", "parallel.tensor=8 parallel.pipeline=4");
  const Machine machine = find_machine("h100", recipe_folder());
  const PlanTarget target{
      .recipe = recipe, .host = small_host(), .world = kRanks, .device = at::kCUDA};
  PlannedSteps steps(target);
  const ShortStages stages(target, machine, ShortPasses::none);
  const Plan expected = make_plan(record_step(target), recipe, machine);
  int64_t most = 0;
  for (const auto& stage : expected.stages) {
    most = std::max(most, stage.parameters + stage.gradients + stage.state);
  }
  const int64_t groups = process_groups(expected.shape);
  CHECK(groups == 4); // tp, pp, dp and all ranks
  CHECK(stages.kept(recipe, steps) == most + machine.hardware.reserved(groups, 0));
}

} // namespace short_stages_tests
