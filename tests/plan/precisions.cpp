// Every precision of the schema is planned under every layout of two ranks that the installed
// strategies make, and under combinations of them.

#include "core/plan/plan.hpp"
#include "core/plan/stage_record.hpp"
#include "core/recipe/layouts.hpp"
#include "core/schema/sections.hpp"
#include "megahost/error.hpp"
#include "tests/dist/small_recipe.hpp"
#include "tests/plan/machine.hpp"

#include <doctest/doctest.h>

#include <optional>
#include <string>
#include <vector>

namespace precisions_tests {

using namespace mh;

namespace {

std::vector<std::string> precisions() {
  std::vector<std::string> names = top_fields().schema().find("precision")->choices;
  std::erase(names, "auto");
  return names;
}

/// Nothing where the model refuses the layout.
std::optional<Recipe> recipe_of(std::vector<std::string> sets, const std::string& layout) {
  sets.insert(sets.end(), {"model.seq_length=64", "data.use=mock", "batch.global=8"});
  try {
    return small_recipe(sets, layout);
  } catch (const Error&) {
    return std::nullopt;
  }
}

int64_t plan_under(const std::vector<Layout>& layouts, const std::vector<std::string>& model) {
  int64_t planned = 0;
  for (const auto& layout : layouts) {
    for (const auto& precision : precisions()) {
      auto sets = model;
      sets.push_back("precision=" + precision);
      const auto recipe = recipe_of(sets, layout.text);
      if (!recipe) {
        continue;
      }
      CAPTURE(layout.text);
      CAPTURE(precision);
      const PlanTarget target{
          .recipe = *recipe,
          .host = small_host(),
          .world = recipe->parallel.ranks(),
          .device = at::kCUDA};
      const Plan plan = make_plan(record_step(target), *recipe, preset_machine("h200"));
      CHECK(plan.step.total > 0);
      ++planned;
    }
  }
  return planned;
}

} // namespace

TEST_CASE("every precision is planned under every layout of two ranks") {
  Host& host = small_host();
  const auto layouts = all_layouts(
      shared_schema("parallel", host.known(Kind::strategy)), host.names(Kind::pipeline_schedule), 2
  );
  for (const auto& model : {std::vector<std::string>{"model.use=llama"}, small_mixture()}) {
    const int64_t planned = plan_under(layouts, model);
    MESSAGE(planned << " plans of " << layouts.size() << " layouts");
    CHECK(planned >= 8 * static_cast<int64_t>(precisions().size()));
  }
}

TEST_CASE("every precision is planned under combinations of strategies") {
  const auto layouts = parse_layouts(
      "tensor=2,sequence=true,pipeline=2,data=2,zero=1; pipeline=2,schedule=zb-h1,tensor=2; "
      "pipeline=2,virtual_stages=2,schedule=zb-v,context=2; data=2,zero=3,tensor=2"
  );
  CHECK(
      plan_under(layouts, {"model.use=llama", "recompute.use=selective"}) ==
      static_cast<int64_t>(layouts.size() * precisions().size())
  );
}

} // namespace precisions_tests
