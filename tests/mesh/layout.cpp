// Groups by arithmetic, sharded tokens, and what rank 0 says when a collective fails.

#include "core/mesh/layout.hpp"

#include "core/mesh/collective_log.hpp"
#include "core/mesh/threads.hpp"
#include "megahost/error.hpp"
#include "megahost/placement.hpp"

#include <doctest/doctest.h>

namespace layout_tests {

using namespace mh;

TEST_CASE("groups of an axis follow the order, fastest axis first") {
  const MeshShape shape{.dp = 2, .tp = 2};
  using Groups = std::vector<std::vector<int64_t>>;
  CHECK(mesh_groups(shape, MeshAxis::tp, "tp-cp-ep-dp-pp") == Groups{{0, 1}, {2, 3}});
  CHECK(mesh_groups(shape, MeshAxis::tp, "dp-cp-ep-tp-pp") == Groups{{0, 2}, {1, 3}});
  CHECK(
      mesh_groups({.dp = 2, .tp = 2, .ep = 2}, MeshAxis::ep, "tp-cp-ep-dp-pp") ==
      Groups{{0, 1}, {2, 3}}
  );
  CHECK_THROWS_WITH_AS(
      mesh_groups(shape, MeshAxis::tp, "tp-dp"), doctest::Contains("each axis once"), Error
  );
}

TEST_CASE("ranks as threads are numbered in any order") {
  run_ranks(
      {.dp = 2, .tp = 2},
      [](const Mesh& mesh) { CHECK(mesh.coordinate(MeshAxis::tp) == mesh.rank() / 2); },
      {.order = "dp-cp-ep-tp-pp"}
  );
}

TEST_CASE("a zigzag gives each rank an early and a late piece") {
  CHECK((sharded_runs(Sharding::zigzag, 16, 2, 0) == std::vector<TokenRun>{{0, 4}, {12, 4}}));
  CHECK((sharded_runs(Sharding::zigzag, 16, 2, 1) == std::vector<TokenRun>{{4, 4}, {8, 4}}));
  CHECK((sharded_runs(Sharding::blocks, 16, 2, 1) == std::vector<TokenRun>{{8, 8}}));
  CHECK((sharded_runs(Sharding::zigzag, 7, 1, 0) == std::vector<TokenRun>{{0, 7}}));
  CHECK_THROWS_WITH_AS(
      (void)sharded_runs(Sharding::zigzag, 10, 2, 0), doctest::Contains("10 tokens"), Error
  );
}

TEST_CASE("rank 0 says which rank is at which collective and which field differs") {
  const Collective a{12, "all-reduce", "tp:0,1", "Float", {4, 8}};
  Collective b = a;
  CHECK(
      compare_collectives({a, b}) == "ranks 0 and 1 are at #12 all-reduce in tp:0,1 of [4, 8] Float"
  );
  b.sizes = {4, 6};
  CHECK(
      compare_collectives({a, b}) ==
      "rank 0 is at #12 all-reduce in tp:0,1 of [4, 8] Float; rank 1 is at #12 all-reduce in "
      "tp:0,1 "
      "of [4, 6] Float; between ranks 0 and 1 differ: sizes [4, 8] and [4, 6]"
  );
  b = a;
  b.name = "all-gather";
  b.number = 13;
  CHECK(compare_collectives({a, b}).ends_with(
      "differ: name all-reduce and all-gather, number 12 and 13"
  ));
  CHECK(
      compare_collectives({a, {}, a, {}}) ==
      "ranks 0 and 2 are at #12 all-reduce in tp:0,1 of [4, 8] Float; ranks 1 and 3 do not answer"
  );
}

} // namespace layout_tests
