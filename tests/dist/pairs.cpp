// Every layout of up to four ranks that the installed strategies make, against one rank: a GPT with
// dropout and a tied output, and a Llama, with and without blocks that are computed again; and
// combinations of more strategies on eight ranks.

#include "core/recipe/sections.hpp"
#include "core/train/trial.hpp"
#include "megahost/error.hpp"
#include "tests/dist/small_recipe.hpp"

#include <doctest/doctest.h>

#include <algorithm>
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

/// What may be refused: three pairs that do not go together, numbers that do not, and experts of a
/// model without.
const std::vector<std::string> kRefusals{
    "parallel.sequence needs parallel.tensor above 1",
    "does not work with parallel.pipeline",
    "does not work with the zero-bubble schedule",
    "is not divisible by",
    "are not divisible by",
    "do not divide one another",
    "divides heads, but a rank of parallel.tensor",
    "is fewer than parallel.pipeline",
    "deals experts out, but the model",
};

/// The recipe of a layout; nothing where the model, or what is installed, refuses it.
std::optional<Recipe> recipe_of(const std::vector<std::string>& model, const std::string& layout) {
  try {
    return small_recipe(model, layout);
  } catch (const Error& error) {
    CAPTURE(layout);
    const std::string all = error.what(); // of several problems each is a refusal
    const std::string between = "\n\nerror: ";
    for (size_t begin = 0; begin != std::string::npos;) {
      const size_t end = all.find(between, begin);
      const std::string why = all.substr(begin, end - begin);
      CAPTURE(why);
      CHECK(std::any_of(kRefusals.begin(), kRefusals.end(), [&](const std::string& refusal) {
        return why.find(refusal) != std::string::npos;
      }));
      begin = end == std::string::npos ? end : end + between.size();
    }
    return std::nullopt;
  }
}

/// Holds a recipe under a layout against one rank, in float64.
void check(const Recipe& recipe, const std::string& layout, const TrialResult& one) {
  CAPTURE(layout);
  const auto other = trial_on_threads(recipe, small_host(), {.dtype = at::kDouble});
  const auto difference = compare_trials(one, other, 1e-12, nullptr);
  CAPTURE(difference.where);
  CAPTURE(difference.worst);
  CHECK(difference.within());
}

TrialResult one_rank(const std::vector<std::string>& model) {
  return trial_on_threads(small_recipe(model, ""), small_host(), {.dtype = at::kDouble});
}

void check_all(const std::vector<std::string>& model, int64_t ranks) {
  Host& host = small_host();
  const auto layouts = all_layouts(
      core_schema("parallel"),
      host.names(Kind::strategy),
      host.names(Kind::pipeline_schedule),
      ranks
  );
  const auto one = one_rank(model);
  int64_t checked = 0;
  for (const auto& layout : layouts) {
    if (const auto recipe = recipe_of(model, layout.text)) {
      check(*recipe, layout.text, one);
      ++checked;
    }
  }
  MESSAGE(checked << " of " << layouts.size() << " layouts checked, the others are refused");
  CHECK(checked >= 5 * ranks);
}

} // namespace

TEST_CASE("gpt, dropout 0.1, tied: every layout has the numbers of one rank") {
  check_all(tiny({"model.use=gpt", "model.dropout=0.1", "model.attention_dropout=0.1"}), 4);
}

TEST_CASE("combinations of more than two strategies have the numbers of one rank") {
  for (const auto& model :
       {tiny({"model.use=gpt", "model.dropout=0.1", "model.attention_dropout=0.1"}),
        tiny({"model.use=llama"}),
        tiny({"model.use=llama", "recompute.use=full"})}) {
    const auto one = one_rank(model);
    for (const char* layout :
         {"tensor=2,sequence=true,pipeline=2,data=2",
          "tensor=2,sequence=true,context=2,data=2,zero=1",
          "pipeline=2,virtual_stages=2,data=2,zero=1",
          "tensor=2,context=2,context_method=ring,pipeline=2"}) {
      check(small_recipe(model, layout), layout, one);
    }
  }
}

TEST_CASE("llama, full recompute: every layout of two ranks has the numbers of one rank") {
  check_all(tiny({"model.use=llama", "recompute.use=full"}), 2);
}

// But for clipping: a norm's last bit depends on how its squares are grouped.
TEST_CASE("tied, full recompute and zero 1: the bits of data parallel") {
  const auto model =
      tiny({"model.use=gpt", "model.tied=true", "model.dropout=0.1", "recompute.use=full"});
  const auto trained = [&](const std::string& layout) {
    return trial_on_threads(
        small_recipe(model, layout), small_host(), {.dtype = at::kFloat, .clip = 0}
    );
  };
  const auto one = trained("data=2"), other = trained("data=2,zero=1");
  for (const auto& [kind, tensors] : one.tensors) {
    REQUIRE(tensors.size() == other.tensors.at(kind).size());
    for (const auto& [name, tensor] : tensors) {
      CAPTURE(kind);
      CAPTURE(name);
      CHECK(at::equal(tensor, other.tensors.at(kind).at(name)));
    }
  }
}

TEST_CASE("four ranks, llama, full recompute: every layout has the numbers of one rank") {
  check_all(tiny({"model.use=llama", "recompute.use=full"}), 4);
}

TEST_CASE("four ranks, llama, dropout 0.1: every layout has the numbers of one rank") {
  check_all(tiny({"model.use=llama", "model.dropout=0.1"}), 4);
}

TEST_CASE("four ranks, gpt, tied, full recompute: every layout has the numbers of one rank") {
  check_all(tiny({"model.use=gpt", "model.dropout=0.1", "recompute.use=full"}), 4);
}
