#include "core/recipe/commands.hpp"
#include "fixture.hpp"

#include <doctest/doctest.h>

#include <random>

namespace fuzz_tests {

namespace {

/// Cuts, doubles, swaps or overwrites a few pieces of a text.
std::string mutated(std::string text, std::mt19937& random) {
  static const std::vector<std::string> pieces{"{",       "}",
                                               "[",       "]",
                                               "=",       ",",
                                               "\"",      "'",
                                               "\n",      "--[[",
                                               "#",       ".",
                                               "return ", "require ",
                                               "merge(",  ")",
                                               "-1",      "1e999",
                                               "nil",     "true",
                                               "\xff",    std::string(1, '\0'),
                                               "\xC3",    "[[",
                                               "extends", "use = ",
                                               "1e30"};
  const auto below = [&random](size_t limit) { return random() % std::max<size_t>(limit, 1); };
  for (size_t count = 1 + below(4); count > 0; --count) {
    const size_t at = below(text.size());
    const size_t length = below(std::min<size_t>(text.size() - at, 24));
    switch (below(4)) {
    case 0:
      text.erase(at, length);
      break;
    case 1:
      text.insert(at, text.substr(below(text.size()), length));
      break;
    case 2:
      text.insert(at, pieces[below(pieces.size())]);
      break;
    default:
      text.replace(at, length, pieces[below(pieces.size())]);
    }
  }
  return text;
}

} // namespace

TEST_CASE("a spoiled recipe resolves or is refused with a sentence, never anything else") {
  const mh::test::Folder folder;
  const mh::test::Plugins plugins;
  std::mt19937 random(20240501);
  mh::LoadOptions options = mh::test::options();
  options.lua = {.seconds = 0.05, .bytes = size_t{4} << 20};
  int refused = 0;
  int resolved = 0;
  for (const char* name : {"quickstart.lua", "llama70b.lua", "gpt2_124m.toml", "gpt2_124m.json"}) {
    const std::filesystem::path file = mh::test::recipes() / name;
    const bool json = file.extension() == ".json";
    const std::string text =
        json ? mh::show_recipe(
                   mh::test::resolve_file(mh::test::recipes() / "gpt2_124m.toml").recipe,
                   mh::RecipeFormat::json,
                   false
               )
             : mh::test::slurp(file);
    for (int i = 0; i < 500; ++i) {
      const auto spoiled =
          folder.write("spoiled" + file.extension().string(), mutated(text, random));
      try {
        const mh::Recipe recipe =
            mh::resolve(mh::load_recipe(spoiled, options), plugins.lookup(), {}).recipe;
        CHECK_FALSE(mh::show_recipe(recipe, mh::RecipeFormat::toml, true).empty());
        ++resolved;
      } catch (const mh::Error& error) {
        CHECK(std::string(error.what()).size() > 5);
        ++refused;
      }
    }
  }
  CHECK(refused > 500);
  CHECK(resolved > 100);
}

} // namespace fuzz_tests
