// Layouts as words, and all that strategies make.

#include "core/recipe/layouts.hpp"

#include "core/schema/sections.hpp"
#include "fixture.hpp"
#include "megahost/error.hpp"

#include <doctest/doctest.h>

#include <algorithm>

namespace layouts_tests {

using namespace mh;

namespace {

std::vector<std::string> texts(const std::vector<Layout>& layouts) {
  std::vector<std::string> all;
  for (const auto& layout : layouts) {
    all.push_back(layout.text);
  }
  return all;
}

bool has(const std::vector<Layout>& layouts, const std::string& text) {
  const auto all = texts(layouts);
  return std::find(all.begin(), all.end(), text) != all.end();
}

} // namespace

TEST_CASE("layouts are read from the command line") {
  const auto layouts = parse_layouts(" tensor=2 ; pipeline=2,data=2; data=2, recompute.use=full;");
  CHECK(
      texts(layouts) ==
      std::vector<std::string>{"tensor=2", "pipeline=2,data=2", "data=2,recompute.use=full"}
  );
  CHECK(layouts[2].sets == std::vector<std::string>{"parallel.data=2", "recompute.use=full"});
  for (const char* wrong : {"", " ; ", "tensor", "tensor=", "=2", "tensor=2,x"}) {
    CAPTURE(wrong);
    CHECK_THROWS_AS((void)parse_layouts(wrong), Error);
  }
}

TEST_CASE("all layouts follow from the strategies that are installed") {
  const test::Plugins plugins;
  const auto with = [&](const std::vector<std::string>& names) {
    auto strategies = plugins.of(Kind::strategy);
    std::erase_if(strategies, [&](const Registry::Entry* entry) {
      return std::find(names.begin(), names.end(), entry->name) == names.end();
    });
    return shared_schema("parallel", strategies);
  };
  CHECK(texts(all_layouts(with({}), {}, 3)) == std::vector<std::string>{"data=2", "data=3"});
  const auto some = all_layouts(with({"tensor", "sequence", "context"}), {}, 4);
  CHECK(has(some, "tensor=2"));
  CHECK(has(some, "tensor=2,sequence=true"));
  CHECK(has(some, "tensor=2,context=2,sequence=true,context_method=all_to_all"));
  CHECK(has(some, "context=2,context_method=all_gather"));
  CHECK_FALSE(has(some, "context=2,context_method=ring")); // the default is said by saying nothing
  CHECK_FALSE(has(some, "data=2,sequence=true"));          // does nothing without tensor
  CHECK_FALSE(has(some, "pipeline=2"));                    // is not installed
  const auto later = all_layouts(with({"pipeline", "zero"}), {"gpipe", "1f1b", "zb-h1"}, 4);
  CHECK(has(later, "data=2,zero=2"));
  CHECK(has(later, "pipeline=2"));
  CHECK(has(later, "pipeline=2,schedule=gpipe"));
  CHECK(has(later, "pipeline=2,data=2,zero=1,virtual_stages=2"));
  CHECK(has(later, "pipeline=2,data=2,zero=1,schedule=zb-h1"));
}

} // namespace layouts_tests
