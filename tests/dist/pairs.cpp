// Every layout of up to four ranks that the installed strategies make, compared with one rank: a
// GPT with dropout and a tied output, and a Llama, with and without recompute; and combinations of
// more strategies on eight ranks.

#include "core/conformance/layout_trial.hpp"
#include "core/schema/sections.hpp"
#include "megahost/error.hpp"
#include "tests/dist/small_recipe.hpp"

#include <ATen/ops/equal.h>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace pairs_tests {

using namespace mh;

namespace {

std::vector<std::string> tiny(std::vector<std::string> more) {
  std::vector<std::string> settings{
      "model.hidden=48",
      "model.head_dim=4",
      "model.ffn_hidden=36",
      "model.vocab=500",
      "model.seq_length=48",
      "model.init_std=0.2",
      "batch.global=4"};
  settings.insert(settings.end(), more.begin(), more.end());
  return settings;
}

/// The refusals that are allowed: three pairs that do not go together, numbers that do not, and
/// experts of a model without.
const std::vector<std::string> kRefusals{
    "parallel.sequence needs parallel.tensor above 1",
    "does not work with parallel.pipeline",
    "does not work with the zero-bubble schedule",
    "is not divisible by",
    "are not divisible by",
    "do not divide one another",
    "divides heads, but a rank of parallel.tensor",
    "is fewer than parallel.pipeline",
    "shards experts, but the model",
};

/// The recipe of a layout; nothing where the model, or what is installed, refuses it.
std::optional<Recipe> recipe_of(const std::vector<std::string>& model, const std::string& layout) {
  try {
    return small_recipe(model, layout);
  } catch (const Error& error) {
    CAPTURE(layout);
    const std::string all = error.what(); // each of several problems is a refusal
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

/// Compares a recipe under a layout with one rank, in float64.
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

/// A model, and all layouts of up to so many ranks.
struct Family {
  std::string name; // in pairs.txt
  std::vector<std::string> model;
  int64_t ranks = 4;
};

const std::vector<Family> kFamilies{
    {"gpt, tied, dropout 0.1",
     tiny({"model.use=gpt", "model.dropout=0.1", "model.attention_dropout=0.1"})},
    {"gpt, tied, dropout 0.1, two ranks",
     tiny({"model.use=gpt", "model.dropout=0.1", "model.attention_dropout=0.1"}),
     2},
    {"llama, full recompute, two ranks", tiny({"model.use=llama", "recompute.use=full"}), 2},
    {"llama, full recompute", tiny({"model.use=llama", "recompute.use=full"})},
    {"llama, dropout 0.1", tiny({"model.use=llama", "model.dropout=0.1"})},
    {"gpt, tied, full recompute",
     tiny({"model.use=gpt", "model.dropout=0.1", "recompute.use=full"})}};

/// The layouts of a family that are not refused, each with its recipe.
std::vector<std::pair<std::string, Recipe>> accepted(const Family& family) {
  Host& host = small_host();
  std::vector<std::pair<std::string, Recipe>> recipes;
  for (const auto& layout : all_layouts(
           shared_schema("parallel", host.known(Kind::strategy)),
           host.names(Kind::pipeline_schedule),
           family.ranks
       )) {
    if (auto recipe = recipe_of(family.model, layout.text)) {
      recipes.emplace_back(layout.text, std::move(*recipe));
    }
  }
  return recipes;
}

void check_all(const std::string& name) {
  const auto family = std::find_if(kFamilies.begin(), kFamilies.end(), [&](const Family& one) {
    return one.name == name;
  });
  REQUIRE(family != kFamilies.end());
  const auto one = one_rank(family->model);
  for (const auto& [layout, recipe] : accepted(*family)) {
    check(recipe, layout, one);
  }
}

} // namespace

// A layout that is refused where it ran before would leave the cases below in silence.
// MEGAHOST_UPDATE_GOLDEN=1 writes the list anew: read the difference before it is kept.
TEST_CASE("the layouts that are checked are those of pairs.txt") {
  std::vector<std::string> found;
  for (const Family& family : kFamilies) {
    for (const auto& [layout, recipe] : accepted(family)) {
      found.push_back(family.name + ": " + layout);
    }
  }
  const auto golden =
      std::filesystem::path(std::getenv("MEGAHOST_SOURCE")) / "tests/dist/pairs.txt";
  if (std::getenv("MEGAHOST_UPDATE_GOLDEN") != nullptr) {
    std::ofstream file(golden);
    for (const std::string& line : found) {
      file << line << "\n";
    }
  }
  std::vector<std::string> listed;
  std::ifstream file(golden);
  for (std::string line; std::getline(file, line);) {
    listed.push_back(line);
  }
  const auto has = [](const std::vector<std::string>& lines, const std::string& line) {
    return std::find(lines.begin(), lines.end(), line) != lines.end();
  };
  for (const std::string& line : listed) {
    CHECK_MESSAGE(has(found, line), line << " is refused now");
  }
  for (const std::string& line : found) {
    CHECK_MESSAGE(has(listed, line), line << " is checked, and not in pairs.txt");
  }
}

TEST_CASE("gpt, dropout 0.1, tied: every layout of two ranks matches one rank") {
  check_all("gpt, tied, dropout 0.1, two ranks");
}

TEST_CASE("combinations of more than two strategies match one rank") {
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

TEST_CASE("llama, full recompute: every layout of two ranks matches one rank") {
  check_all("llama, full recompute, two ranks");
}

// But for clipping: a norm's last bit depends on how its squares are grouped.
TEST_CASE("tied, full recompute and ZeRO-1: the bits of data parallel") {
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

TEST_CASE("four ranks, gpt, dropout 0.1, tied: every layout matches one rank") {
  check_all("gpt, tied, dropout 0.1");
}

TEST_CASE("four ranks, llama, full recompute: every layout matches one rank") {
  check_all("llama, full recompute");
}

TEST_CASE("four ranks, llama, dropout 0.1: every layout matches one rank") {
  check_all("llama, dropout 0.1");
}

TEST_CASE("four ranks, gpt, tied, full recompute: every layout matches one rank") {
  check_all("gpt, tied, full recompute");
}

} // namespace pairs_tests
