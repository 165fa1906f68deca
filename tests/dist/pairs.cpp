// Every layout of up to four ranks that the installed strategies make, against one rank: a GPT with
// dropout and a tied output, and a Llama whose blocks are all computed again.

#include "core/recipe/sections.hpp"
#include "core/train/trial.hpp"
#include "megahost/error.hpp"
#include "tests/dist/small_recipe.hpp"

#include <doctest/doctest.h>

#include <optional>
#include <string>
#include <vector>

using namespace mh;

namespace {

std::vector<std::string> tiny(std::vector<std::string> more) {
  std::vector<std::string> settings{
      "model.hidden=48",
      "model.head_dim=4",
      "model.ffn_hidden=36",
      "model.vocab=500",
      "model.seq_length=48",
      "model.init_std=0.2"};
  settings.insert(settings.end(), more.begin(), more.end());
  return settings;
}

/// The recipe of a layout; nothing where the model, or what is installed, refuses it.
std::optional<Recipe> recipe_of(const std::vector<std::string>& model, const std::string& layout) {
  try {
    return small_recipe(model, layout);
  } catch (const Error&) {
    return std::nullopt;
  }
}

void check_all(const std::vector<std::string>& model, int64_t ranks) {
  Host& host = small_host();
  const auto layouts = all_layouts(
      core_schema("parallel"),
      host.names(Kind::strategy),
      host.names(Kind::pipeline_schedule),
      ranks
  );
  const auto one = trial_on_threads(small_recipe(model, ""), host, {.dtype = at::kDouble});
  int64_t checked = 0;
  for (const auto& layout : layouts) {
    const auto recipe = recipe_of(model, layout.text);
    if (!recipe) {
      continue;
    }
    CAPTURE(layout.text);
    const auto other = trial_on_threads(*recipe, host, {.dtype = at::kDouble});
    const auto difference = compare_trials(one, other, 1e-12, nullptr);
    CAPTURE(difference.where);
    CAPTURE(difference.worst);
    CHECK(difference.within());
    ++checked;
  }
  MESSAGE(checked << " of " << layouts.size() << " layouts checked, the others are refused");
  CHECK(checked >= 5 * ranks);
}

} // namespace

TEST_CASE("gpt, dropout 0.1, tied: every layout has the numbers of one rank") {
  check_all(tiny({"model.use=gpt", "model.dropout=0.1", "model.attention_dropout=0.1"}), 4);
}

TEST_CASE("llama, full recompute: every layout of two ranks has the numbers of one rank") {
  check_all(tiny({"model.use=llama", "recompute.use=full"}), 2);
}

TEST_CASE("llama, full recompute: every layout of four ranks has the numbers of one rank") {
  check_all(tiny({"model.use=llama", "recompute.use=full"}), 4);
}
