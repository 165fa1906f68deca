// When a run that failed is started again.

#include "core/commands/restarts.hpp"

#include <doctest/doctest.h>

namespace {

using mh::why_not_again;

TEST_CASE("a failed run is started again") {
  CHECK(why_not_again({{.status = 137, .step = 3}}, 1).empty());
  CHECK(why_not_again({{.status = 4, .step = 3}, {.status = 4, .step = 3}}, 2).empty());
  CHECK(why_not_again({{1, 3}, {1, 3}, {1, 4}, {1, 4}}, 9).empty());
}

TEST_CASE("not forever") {
  CHECK(
      why_not_again({{.status = 2, .step = 0}}, 9) == "another start would meet the same mistake"
  );
  CHECK(why_not_again({{.status = 143, .step = 8}}, 9) == "it was asked to end");
  CHECK(
      why_not_again({{1, 3}, {1, 4}}, 1) ==
      "it failed in each of 2 starts, and --max-restarts allows 1"
  );
  CHECK(
      why_not_again({{137, 5, "killed"}, {6, 5, "NaN"}, {6, 5, "NaN"}}, 9) ==
      "it failed three times in a row after step 5, first of these with: killed"
  );
  CHECK(
      why_not_again({{1, 0, "x"}, {1, 0, "x"}, {1, 0, "x"}}, 9) ==
      "it failed three times in a row before its first step"
  );
}

TEST_CASE("a restart resumes") {
  using Words = std::vector<std::string>;
  CHECK(
      mh::words_to_go_on({"megahost", "run", "a.lua", "--resume", "--nproc", "2"}) ==
      Words{"megahost", "run", "a.lua", "--nproc", "2", "--resume=auto"}
  );
}

} // namespace
