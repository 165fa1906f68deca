// The ranks that wait for others, and the sentences about them.

#include "core/mesh/stall.hpp"

#include <doctest/doctest.h>

namespace stall_tests {

using namespace mh;

namespace {

using Answer = SeenRank::Answer;

Collective all_reduce(int64_t number, const std::string& group) {
  return {number, "all-reduce", group, "Float", {4, 8}};
}

/// A rank that waits in the `sequence`-th collective of its group.
SeenRank waiting(const std::string& group, std::vector<int64_t> others, int64_t sequence) {
  RankProgress at{.step = 7, .seconds = 12, .last = all_reduce(30 + sequence, group)};
  at.waits_in = at.last;
  at.sequence = sequence;
  at.waits_for = std::move(others);
  at.begun[group] = sequence;
  return {Answer::alive, "n1", at};
}

SeenRank busy(const std::string& group, int64_t sequence) {
  RankProgress at{.step = 7, .seconds = 11, .last = all_reduce(30 + sequence, group)};
  at.begun[group] = sequence;
  return {Answer::alive, "n2", at};
}

SeenRank receiving(int64_t own, int64_t from) {
  RankProgress at{.step = 3, .seconds = 20};
  at.last = {9, "receive from " + std::to_string(from), "pp:0,1,2", "Float", {2}};
  at.waits_in = at.last;
  at.transfer = true;
  at.waits_for = {from};
  return {Answer::alive, "n" + std::to_string(own), at};
}

constexpr double kPatience = 5;

} // namespace

TEST_CASE("a rank that does not answer is named, and those that wait for it together") {
  SeenRank silent = busy("world:0,1,2", 4);
  silent.answer = Answer::silent;
  const auto stall = find_stall(
      {waiting("world:0,1,2", {1, 2}, 5), silent, waiting("world:0,1,2", {0, 1}, 5)}, kPatience
  );
  REQUIRE(stall);
  CHECK(stall->late == std::vector<int64_t>{1});
  CHECK(stall->seconds == 12);
  CHECK(
      stall->text ==
      "waiting for rank 1 on n2, which does not answer (its process is stopped, or "
      "its machine cannot be reached); ranks 0 and 2 on n1 wait in #35 all-reduce in "
      "world:0,1,2 of [4, 8] Float of step 7"
  );
}

TEST_CASE("several ranks that do not answer are named together") {
  SeenRank silent = busy("world:0,1,2", 4);
  silent.answer = Answer::silent;
  const auto stall = find_stall({waiting("world:0,1,2", {1, 2}, 5), silent, silent}, kPatience);
  REQUIRE(stall);
  CHECK(stall->text.starts_with("waiting for ranks 1 and 2 on n2, which do not answer (they are "
                                "stopped, or their machines cannot be reached); rank 0 on n1 "));
}

TEST_CASE("a rank that is busy elsewhere is told from one that has come there") {
  const auto stall = find_stall(
      {waiting("tp:0,1,2", {1, 2}, 5), busy("tp:0,1,2", 4), busy("tp:0,1,2", 5)}, kPatience
  );
  REQUIRE(stall);
  CHECK(stall->late == std::vector<int64_t>{1});
  CHECK(stall->text.starts_with("waiting for rank 1 on n2, which is busy elsewhere in step 7, 11 s "
                                "after #34 all-reduce in tp:0,1,2 of [4, 8] Float; rank 0 on n1 "));
}

TEST_CASE("a chain of stages that wait leads to the rank at its end") {
  SeenRank last = busy("tp:2", 1);
  const auto stall = find_stall({receiving(0, 1), receiving(1, 2), last}, kPatience);
  REQUIRE(stall);
  CHECK(stall->late == std::vector<int64_t>{2});
  CHECK(
      stall->text.ends_with("; rank 0 on n0 waits in #9 receive from 1 in pp:0,1,2 of [2] Float of "
                            "step 3; rank 1 on n1 waits in #9 receive from 2 in pp:0,1,2 of [2] "
                            "Float of step 3")
  );
}

TEST_CASE("ranks that wait for one another, and ranks that do not wait") {
  const auto deadlock = find_stall({receiving(0, 1), receiving(1, 0)}, kPatience);
  REQUIRE(deadlock);
  CHECK(deadlock->late.empty());
  CHECK(deadlock->text.starts_with("the ranks wait for one another; rank 0 on n0 waits in "));
  CHECK_FALSE(find_stall({busy("tp:0,1", 4), busy("tp:0,1", 3)}, kPatience));
  CHECK_FALSE(find_stall({waiting("tp:0,1", {1}, 5), busy("tp:0,1", 4)}, /*patience=*/13));
}

TEST_CASE("ranks that disagree: the one that is not where most are is named") {
  const std::vector<int64_t> all{0, 1, 2};
  auto odd = waiting("dp:0,1,2", all, 5);
  odd.at.waits_in->sizes = {2};
  const auto same_turn =
      find_stall({waiting("dp:0,1,2", all, 5), odd, waiting("dp:0,1,2", all, 5)}, kPatience);
  REQUIRE(same_turn);
  CHECK(same_turn->late == std::vector<int64_t>{1});
  CHECK(same_turn->text.starts_with("rank 1 on n1 is not where the others are: in different "
                                    "collectives of dp:0,1,2, in turn 5 of each; ranks 0 and 2"));
  const auto elsewhere = find_stall(
      {waiting("world:0,1,2", all, 9), waiting("dp:0,1,2", all, 5), waiting("world:0,1,2", all, 9)},
      kPatience
  );
  REQUIRE(elsewhere);
  CHECK(elsewhere->late == std::vector<int64_t>{1});
  CHECK(elsewhere->text.starts_with("rank 1 on n1 waits in another collective than most, so that "
                                    "each waits for others; ranks 0 and 2 on n1 wait in "));
}

TEST_CASE("two ranks that disagree are both shown; rows of an all-to-all may differ") {
  auto left = waiting("dp:0,1", {1}, 5), right = waiting("dp:0,1", {0}, 5);
  right.at.waits_in->name = "all-gather";
  const auto stall = find_stall({left, right}, kPatience);
  REQUIRE(stall);
  CHECK(stall->late.empty());
  CHECK(stall->text.starts_with(
      "the ranks are in different collectives of dp:0,1, in turn 5 of each; rank 0 on n1 waits in "
  ));
  left.at.waits_in->name = right.at.waits_in->name = "all-to-all";
  right.at.waits_in->sizes = {2, 8};
  const auto rows = find_stall({left, right}, kPatience);
  REQUIRE(rows);
  CHECK(rows->text.starts_with("the ranks wait for one another; "));
}

TEST_CASE("nothing is said of a rank that was not asked") {
  const auto stall = find_stall({waiting("tp:0,1", {1}, 5), {}}, kPatience);
  REQUIRE(stall);
  CHECK(stall->late.empty());
}

TEST_CASE("what a rank tells comes back from its text") {
  for (const RankProgress& at :
       {waiting("tp:0,1", {1}, 5).at, receiving(0, 1).at, busy("tp:0,1", 2).at, RankProgress{}}) {
    const RankProgress back = parse_progress(progress_text(at));
    CHECK(back.step == at.step);
    CHECK(back.seconds == at.seconds);
    CHECK(back.last.text() == at.last.text());
    CHECK(back.waits_in.has_value() == at.waits_in.has_value());
    CHECK(back.waits_for == at.waits_for);
    CHECK(back.sequence == at.sequence);
    CHECK(back.transfer == at.transfer);
    CHECK(back.begun == at.begun);
  }
}

} // namespace stall_tests
