// A search over layouts: what its threads warn of.

#include "core/plan/search.hpp"
#include "tests/dist/small_recipe.hpp"
#include "tests/plan/machine.hpp"

#include <c10/util/Exception.h>

#include <doctest/doctest.h>

#include <string>
#include <vector>

namespace searched_tests {

using namespace mh;

namespace {

struct Heard : c10::WarningHandler {
  void process(const c10::Warning& warning) override { sentences.push_back(warning.msg()); }

  std::vector<std::string> sentences;
};

} // namespace

TEST_CASE("warnings of a search's threads are told once, when it is over") {
  Host& host = small_host();
  const Machine machine = preset_machine("h100");
  const std::vector<std::string> model{
      "model.use=llama", "model.seq_length=64", "data.use=mock", "batch.global=8", "device=cuda"};
  const auto recipe = [&](const std::vector<std::string>& sets) {
    TORCH_WARN("this layout is odd");
    auto all = model;
    all.insert(all.end(), sets.begin(), sets.end());
    return small_recipe(all, "");
  };
  Heard heard;
  const c10::WarningUtils::WarningHandlerGuard guard(&heard);
  const Recipe base = recipe(one_rank_sets(host));
  heard.sentences.clear();
  const SearchResult result = search_layouts({host, machine, 2, base, recipe});
  CHECK(result.tried > 2);
  CHECK(result.planned > 0);
  CHECK(heard.sentences.empty());
  CHECK(result.warnings == std::vector<std::string>{"this layout is odd"});

  // An exception that ends the search does not hide its warnings.
  const SearchTask broken{
      host, machine, 2, base, [&](const std::vector<std::string>& sets) -> Recipe {
        TORCH_WARN("this layout is odd");
        throw std::runtime_error("no recipe of " + std::to_string(sets.size()) + " sets");
      }};
  CHECK_THROWS_AS((void)search_layouts(broken), std::runtime_error);
  CHECK(heard.sentences == std::vector<std::string>{"this layout is odd"});
}

} // namespace searched_tests
