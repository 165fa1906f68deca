#include "core/recipe/commands.hpp"

#include "fixture.hpp"

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include <filesystem>
#include <set>
#include <string>
#include <vector>

namespace commands_tests {

using mh::test::Folder;
using mh::test::options;
using mh::test::resolve_file;

namespace {

/// The recipes of usual decoders: others need their plugins, whose tests resolve them.
std::vector<std::filesystem::path> all_recipes() {
  const std::set<std::string> others{"bert_tiny", "hybrid_tiny", "ict_tiny", "t5_tiny"};
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(mh::test::recipes())) {
    const auto ending = entry.path().extension();
    if ((ending == ".lua" || ending == ".toml") && !others.contains(entry.path().stem())) {
      files.push_back(entry.path());
    }
  }
  return files;
}

void check_round_trip(const mh::Recipe& recipe) {
  const Folder folder;
  for (const char* format : {"toml", "lua", "json"}) {
    for (const bool origins : {false, true}) {
      CAPTURE(format);
      CAPTURE(origins);
      const std::string shown = mh::show_recipe(recipe, mh::recipe_format(format), origins);
      if (origins && std::string(format) == "json") {
        const auto both = nlohmann::json::parse(shown);
        CHECK(both["recipe"]["optimizer"]["lr"] == recipe.optimizer.lr);
        CHECK(both["origins"].contains("optimizer.lr"));
        continue;
      }
      const mh::Recipe again =
          resolve_file(folder.write(std::string("again.") + format, shown)).recipe;
      CHECK(again.tree == recipe.tree);
      CHECK(
          mh::show_recipe(again, mh::recipe_format(format), false) ==
          mh::show_recipe(recipe, mh::recipe_format(format), false)
      );
    }
  }
}

} // namespace

TEST_CASE("every recipe shown resolves to itself in TOML, Lua and JSON") {
  const auto files = all_recipes();
  CHECK(files.size() >= 4);
  for (const auto& file : files) {
    CAPTURE(file.string());
    check_round_trip(resolve_file(file).recipe);
  }
}

TEST_CASE("awkward values survive the round trip") {
  const Folder folder;
  const auto file = folder.write("odd.lua", R"(return {
    name = 'quote " slash \\ tab \t newline \n bell \7 ünï [[x]] \\u00e9',
    model = { use = "gpt", layers = 1, hidden = 8, heads = 1, norm_eps = 1 / 3 },
    data = { paths = { "a b", "", "ü" }, split = { 1, 0, 0 } },
    train = { iters = 5, seed = 9007199254740993 },
    sweep = { grid = { ["optimizer.lr"] = { 1e-4, 3e-4 }, ["end"] = { 1, true, "x" } } },
  })");
  const mh::Recipe recipe = resolve_file(file).recipe;
  CHECK(recipe.train.seed == 9007199254740993);
  check_round_trip(recipe);
}

TEST_CASE("the Lua and the TOML recipe of GPT-2 are equal") {
  const mh::Recipe lua = resolve_file(mh::test::recipes() / "gpt2_124m.lua").recipe;
  const mh::Recipe toml = resolve_file(mh::test::recipes() / "gpt2_124m.toml").recipe;
  CHECK(lua.tree == toml.tree);
  CHECK(mh::diff_recipes(lua, toml).empty());
  CHECK(
      mh::show_recipe(lua, mh::RecipeFormat::toml, false) ==
      mh::show_recipe(toml, mh::RecipeFormat::toml, false)
  );
}

TEST_CASE("origins are shown next to the values") {
  const mh::Recipe recipe = resolve_file(mh::test::recipes() / "gpt2_124m.toml").recipe;
  const std::string shown = mh::show_recipe(recipe, mh::RecipeFormat::toml, true);
  CHECK(shown.find("gpt2_124m.toml:29:6\n") != std::string::npos);
  CHECK(shown.find("layers = 12  # preset ") != std::string::npos);
  CHECK(shown.find("schedule = \"1f1b\"  # default\n") != std::string::npos);
  CHECK(shown.find("precision = \"fp32\"  # machine\n") != std::string::npos);
}

TEST_CASE("the difference of two recipes") {
  const Folder folder;
  const std::string tiny =
      "model = { use = \"llama\", layers = 4, hidden = 64, heads = 4 }\ntrain.iters = 10\n";
  const auto left = resolve_file(folder.write("a.toml", "name = \"x\"\n" + tiny)).recipe;
  const auto right = resolve_file(folder.write(
                                      "b.toml",
                                      "name = \"x\"\nmodel = { use = \"llama\", layers = 5, hidden "
                                      "= 64, heads = 4, vocab = 9 }\ntrain.iters = 10\n"
                                  ))
                         .recipe;
  const std::string text = mh::diff_recipes(left, right);
  CHECK(
      text == "- model.layers = 4   (" + (folder.path() / "a.toml").string() + ":2:35)\n" +
                  "+ model.layers = 5   (" + (folder.path() / "b.toml").string() + ":2:35)\n" +
                  "+ model.vocab = 9   (" + (folder.path() / "b.toml").string() + ":2:70)\n"
  );
}

TEST_CASE("check says what the recipe is") {
  const auto file = mh::test::recipes() / "llama70b.lua";
  const mh::Loaded loaded = mh::load_recipe(file, options());
  const mh::test::Plugins plugins;
  const mh::Resolved resolved = mh::resolve(loaded, plugins.lookup(), {});
  CHECK(resolved.recipe.parallel.ranks() == 32);
  CHECK(
      mh::check_recipe(loaded, resolved) == file.string() +
                                                " is a valid recipe: model llama, optimizer adamw, "
                                                "data text, 500000 steps of 1024 x 4096 "
                                                "tokens, bf16, 32 ranks\n"
  );
  CHECK(mh::test::refusal([] {
          static_cast<void>(mh::recipe_format("yaml"));
        }) == "--format is \"yaml\", expected toml, lua or json");
}

TEST_CASE("--scale keeps the structure and fits one rank") {
  for (const auto& file : all_recipes()) {
    CAPTURE(file.string());
    const mh::Recipe full = resolve_file(file).recipe;
    mh::LoadOptions load = options();
    load.layers = {mh::scale_recipe(full.tree, mh::test::Plugins().lookup())};
    const mh::Recipe small = resolve_file(file, load).recipe;
    const auto number = [](const mh::Recipe& recipe, const char* key) {
      const mh::Value* value = recipe.model.options.find(key);
      return value ? value->as_integer() : 0;
    };
    CHECK(small.parallel.ranks() == 1);
    CHECK(small.device.use == "cpu");
    CHECK(number(small, "layers") == 4);
    CHECK(number(small, "hidden") <= 256);
    CHECK(number(small, "hidden") % number(small, "heads") == 0);
    CHECK(number(small, "vocab") == 0);
    CHECK(small.model.seq_length == 128);
    CHECK(small.iterations() == 20);
    CHECK(small.data.use == "mock");
    CHECK(small.recompute.use == full.recompute.use);
    CHECK(small.tree.find_path("model.layers")->origin.layer() == "--scale");
    if (number(full, "kv_heads") > 0) {
      CHECK(
          number(full, "heads") * number(small, "kv_heads") ==
          number(small, "heads") * number(full, "kv_heads")
      );
    }
    check_round_trip(small);
  }
}

} // namespace commands_tests
