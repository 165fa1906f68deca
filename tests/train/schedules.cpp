// Every schedule over many sizes: proved, in its memory, with the bubble that its paper says;
// faulty lists are refused, and the fault is named.

#include "core/step/pipeline_lists.hpp"
#include "megahost/error.hpp"
#include "plugins/parallel/pipeline/orders.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <functional>
#include <set>
#include <string>

using namespace mh;

namespace {

using Op = Instruction::Op;
using pipeline::Args;
using MakeOrder = pipeline::Order (*)(const Args&);

struct Named {
  const char* name;
  MakeOrder make;
  int64_t least_virtual, most_virtual;
  bool divides; ///< virtual stages need microbatches that the stages divide
};

constexpr Named kSchedules[] = {
    {"gpipe", pipeline::gpipe, 1, 4, false},
    {"1f1b", pipeline::one_forward_one_backward, 1, 4, true},
    {"zb-h1", pipeline::zero_bubble, 1, 1, false},
    {"zb-v", pipeline::zero_bubble_vee, 2, 2, false},
};

InstructionLists lists_of(MakeOrder make, const Args& args) {
  return pipeline::lists_of(make(args), args);
}

Args with_order(Args args, const pipeline::Order& order) {
  args.order = order.chunks;
  return args;
}

std::string words(const Named& schedule, const Args& args) {
  return std::string(schedule.name) + " " + std::to_string(args.stages) + " x " +
         std::to_string(args.virtual_stages) + ", " + std::to_string(args.microbatches);
}

/// Calls `use` with every size that a schedule takes.
void over_sizes(const Named& schedule, const std::function<void(const Args&)>& use) {
  for (int64_t stages = 1; stages <= 8; ++stages) {
    for (int64_t chunks = schedule.least_virtual;
         chunks <= (stages > 1 ? schedule.most_virtual : 1);
         ++chunks) {
      for (int64_t m = 1; m <= 32; ++m) {
        if (chunks == 1 || !schedule.divides || m % stages == 0) {
          use({stages, chunks, m});
        }
      }
    }
  }
}

std::string refusal(
    const Args& args,
    const InstructionLists& lists,
    const std::function<int64_t(int64_t)>& most_live = [](int64_t) { return 0; }
) {
  try {
    check_lists(args, lists, most_live);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

size_t place(const std::vector<Instruction>& list, Op op, int32_t chunk, int32_t microbatch) {
  const Instruction one{op, chunk, microbatch};
  const auto found = std::find(list.begin(), list.end(), one);
  REQUIRE_MESSAGE(found != list.end(), to_string(one));
  return static_cast<size_t>(found - list.begin());
}

} // namespace

TEST_CASE("every schedule is proved for 1 to 8 stages, 1 to 4 chunks, 1 to 32 microbatches") {
  int64_t proved = 0;
  for (const auto& schedule : kSchedules) {
    over_sizes(schedule, [&](const Args& sizes) {
      const auto order = schedule.make(sizes);
      const Args args = with_order(sizes, order);
      const auto lists = with_transfers(args, order.passes);
      const auto most = [&](int64_t stage) { return order.most_live[static_cast<size_t>(stage)]; };
      CHECK_MESSAGE(refusal(args, lists, most) == "", words(schedule, args));
      // The promise is kept and not too large.
      const auto less = [&](int64_t stage) { return std::max<int64_t>(most(stage) - 1, 0); };
      if (order.most_live[0] > 1) {
        CHECK_MESSAGE(
            refusal(args, lists, less).find("holds the activations of") != std::string::npos,
            words(schedule, args)
        );
      }
      ++proved;
    });
  }
  CHECK(proved == 1599 + 7 * 32);
}

TEST_CASE("an evaluation has the forward passes of any schedule, and ends") {
  for (const auto& schedule : kSchedules) {
    over_sizes(schedule, [&](const Args& sizes) {
      const auto order = schedule.make(sizes);
      const Args args = with_order(sizes, order);
      const auto forward = forward_lists(args, pipeline::lists_of(order, args));
      const auto timeline = simulate(args, forward, PassTimes::even(args.chunks()));
      for (const auto& stage : timeline.stages) {
        CHECK(static_cast<int64_t>(stage.size()) == args.virtual_stages * args.microbatches);
      }
    });
  }
}

TEST_CASE("the bubble is what the papers say") {
  const auto bubble = [](MakeOrder make, const Args& sizes) {
    const auto order = make(sizes);
    const Args args = with_order(sizes, order);
    return simulate(args, pipeline::lists_of(order, args), PassTimes::even(args.chunks())).bubble();
  };
  for (int64_t p = 1; p <= 8; ++p) {
    for (int64_t m = p; m <= 32; m += p) {
      CAPTURE(p);
      CAPTURE(m);
      const double one = static_cast<double>(p - 1) / static_cast<double>(m);
      CHECK(bubble(pipeline::gpipe, {p, 1, m}) == doctest::Approx(one));
      CHECK(bubble(pipeline::one_forward_one_backward, {p, 1, m}) == doctest::Approx(one));
      // arXiv:2401.10241, table 2: (p - 1)(F + B - W) of m (F + B + W).
      CHECK(bubble(pipeline::zero_bubble, {p, 1, m}) == doctest::Approx(one / 3));
      for (int64_t v = 2; v <= 4 && p > 1; ++v) {
        CAPTURE(v);
        CHECK(
            bubble(pipeline::one_forward_one_backward, {p, v, m}) ==
            doctest::Approx(one / static_cast<double>(v))
        );
      }
    }
  }
}

TEST_CASE("a V has no gaps: a stage waits for its first pass, and the others for the last one's") {
  for (int64_t p = 2; p <= 8; ++p) {
    for (int64_t m = 2 * p; m <= 32; ++m) {
      CAPTURE(p);
      CAPTURE(m);
      const auto order = pipeline::zero_bubble_vee({p, 2, m});
      const Args args = with_order({p, 2, m}, order);
      const auto timeline =
          simulate(args, pipeline::lists_of(order, args), PassTimes::even(args.chunks()));
      CHECK(timeline.bubble() == doctest::Approx((p - 1.0) / (6.0 * static_cast<double>(m))));
      for (const auto& stage : timeline.stages) {
        CHECK(
            stage.back().end - stage.front().begin == doctest::Approx(6.0 * static_cast<double>(m))
        );
      }
      for (int64_t stage = 0; stage < p; ++stage) { // passes of half as many layers as with 1f1b
        CHECK(order.most_live[static_cast<size_t>(stage)] == 2 * p);
      }
    }
  }
}

TEST_CASE("a V hands on within a stage, at its turn, and has both ends of the model on the first") {
  const Args args{4, 2, 8, ChunkOrder::vee};
  CHECK(args.chunk_of(0, 0) == 0);
  CHECK(args.chunk_of(0, 1) == 7);
  CHECK(args.chunk_of(3, 0) == 3);
  CHECK(args.chunk_of(3, 1) == 4);
  for (int64_t chunk = 0; chunk < args.chunks(); ++chunk) {
    CHECK(args.chunk_of(args.stage_of(chunk), chunk / args.stages) == chunk);
  }
  CHECK(neighbour(args, 3, 0, 1) == 1);
  CHECK(neighbour(args, 3, 1, -1) == 0);
  CHECK(neighbour(args, 2, 0, 1) == -1);
  CHECK(neighbour(args, 0, 0, -1) == -1);
  CHECK(neighbour(args, 0, 1, 1) == -1);
  auto lists = lists_of(pipeline::zero_bubble_vee, args);
  REQUIRE(refusal(args, lists) == "");
  auto& turn = lists[3];
  for (const auto& one : turn) {
    const bool within = (one.op == Op::send_forward && one.chunk == 0) ||
                        (one.op == Op::receive_forward && one.chunk == 1);
    CHECK_FALSE(within);
  }
  SUBCASE("what the stage hands to itself comes first") {
    std::iter_swap(
        turn.begin() + static_cast<int64_t>(place(turn, Op::forward, 0, 0)),
        turn.begin() + static_cast<int64_t>(place(turn, Op::forward, 1, 0))
    );
    CHECK(
        refusal(args, lists)
            .find("stage 3 has forward of chunk 1, microbatch 0 before forward of chunk 0") !=
        std::string::npos
    );
  }
  SUBCASE("nothing is sent at the turn") {
    turn.push_back({Op::send_forward, 0, 0});
    CHECK(
        refusal(args, lists).find("but no chunk of another stage comes after it") !=
        std::string::npos
    );
  }
}

TEST_CASE("interleaving follows Megatron's table and warm-up") {
  // Megatron Core 0.16.1: microbatches, chunks, stages -> [microbatch, chunk] in order.
  const auto forward_of = [](const Args& args, int64_t stage) {
    std::vector<std::pair<int32_t, int32_t>> found;
    const auto order = pipeline::one_forward_one_backward(args);
    for (const auto& one : order.passes[static_cast<size_t>(stage)]) {
      if (one.op == Op::forward) {
        found.emplace_back(one.microbatch, one.chunk);
      }
    }
    return found;
  };
  using Table = std::vector<std::pair<int32_t, int32_t>>;
  CHECK(
      forward_of({4, 2, 8}, 1) ==
      Table{
          {0, 0},
          {1, 0},
          {2, 0},
          {3, 0},
          {0, 1},
          {1, 1},
          {2, 1},
          {3, 1},
          {4, 0},
          {5, 0},
          {6, 0},
          {7, 0},
          {4, 1},
          {5, 1},
          {6, 1},
          {7, 1}}
  );
  CHECK(
      forward_of({2, 3, 4}, 0) ==
      Table{
          {0, 0},
          {1, 0},
          {0, 1},
          {1, 1},
          {0, 2},
          {1, 2},
          {2, 0},
          {3, 0},
          {2, 1},
          {3, 1},
          {2, 2},
          {3, 2}}
  );
  const auto warm_up = [](const Args& args) {
    std::vector<size_t> counts;
    const auto order = pipeline::one_forward_one_backward(args);
    for (const auto& list : order.passes) {
      const auto first = std::find_if(list.begin(), list.end(), [](const auto& one) {
        return one.op != Op::forward;
      });
      // Megatron runs one more forward pass before the first backward one where some are left.
      const auto count = static_cast<size_t>(first - list.begin());
      const auto all = static_cast<size_t>(args.virtual_stages * args.microbatches);
      counts.push_back(count == all ? count : count - 1);
    }
    return counts;
  };
  CHECK(warm_up({4, 1, 8}) == std::vector<size_t>{3, 2, 1, 0});
  CHECK(warm_up({4, 2, 8}) == std::vector<size_t>{10, 8, 6, 4});
}

TEST_CASE("receives are posted before the pass that comes before theirs, as far as the order allows"
) {
  const Args args{4, 1, 8};
  const auto lists = lists_of(pipeline::one_forward_one_backward, args);
  for (size_t stage = 1; stage < 4; ++stage) {
    for (int32_t m = 1; m < static_cast<int32_t>(4 - stage); ++m) { // microbatches of the warm-up
      CHECK(
          place(lists[stage], Op::receive_forward, 0, m) <
          place(lists[stage], Op::forward, 0, m - 1)
      );
    }
  }
  // In the steady state one of the two directions: gradients come while the stage runs forward.
  CHECK(place(lists[1], Op::receive_backward, 0, 2) < place(lists[1], Op::forward, 0, 4));
  const auto gpipe = lists_of(pipeline::gpipe, args);
  for (int32_t m = 1; m < 8; ++m) {
    CHECK(place(gpipe[2], Op::receive_forward, 0, m) < place(gpipe[2], Op::forward, 0, m - 1));
    CHECK(place(gpipe[2], Op::receive_backward, 0, m) < place(gpipe[2], Op::backward, 0, m - 1));
  }
}

TEST_CASE("a slow stage makes the others wait: the timeline knows each chunk's cost") {
  const Args args{2, 1, 4};
  PassTimes times = PassTimes::even(2);
  times.forward[1] = 3;
  const auto lists = lists_of(pipeline::gpipe, args);
  // Forward 1 + 4 x 3; then stage 1 backward 4 x 2, and the last one of stage 0.
  CHECK(simulate(args, lists, times).length == doctest::Approx(1 + 12 + 8 + 2));
  times.transfer = 0.5;
  CHECK(simulate(args, lists, times).length == doctest::Approx(1 + 12 + 8 + 2 + 2 * 0.5));
}

TEST_CASE("faulty lists are refused, and the fault is named") {
  const Args args{2, 1, 3};
  auto lists = lists_of(pipeline::one_forward_one_backward, args);
  REQUIRE(refusal(args, lists) == "");
  auto& first = lists[0];
  auto& last = lists[1];
  const auto at = [](std::vector<Instruction>& list, Op op, int32_t m) {
    return list.begin() + static_cast<int64_t>(place(list, op, 0, m));
  };
  std::string expected;
  SUBCASE("a pass is missing") {
    first.erase(at(first, Op::backward, 1));
    expected = "stage 0 lacks backward of chunk 0, microbatch 1";
  }
  SUBCASE("a pass is there twice") {
    last.push_back({Op::backward, 0, 2});
    expected = "stage 1 has backward of chunk 0, microbatch 2 twice";
  }
  SUBCASE("a transfer is missing") {
    first.erase(at(first, Op::send_forward, 2));
    expected = "stage 0 lacks send_forward of chunk 0, microbatch 2";
  }
  SUBCASE("a receive is missing") {
    last.erase(at(last, Op::receive_forward, 2));
    expected = "stage 1 has forward of chunk 0, microbatch 2 before receive_forward of chunk 0, "
               "microbatch 2";
  }
  SUBCASE("a pass before what it needs") {
    std::iter_swap(at(first, Op::receive_backward, 0), at(first, Op::backward, 0));
    expected = "stage 0 has backward of chunk 0, microbatch 0 before receive_backward";
  }
  SUBCASE("a send before its pass") {
    std::iter_swap(at(first, Op::forward, 0), at(first, Op::send_forward, 0));
    expected = "stage 0 has send_forward of chunk 0, microbatch 0 before forward";
  }
  SUBCASE("a microbatch that is none") {
    first.push_back({Op::forward, 0, 3});
    expected = "stage 0 has forward of chunk 0, microbatch 3, but there are 1 chunks and 3";
  }
  SUBCASE("nothing comes before the first chunk") {
    first.insert(first.begin(), {Op::receive_forward, 0, 0});
    expected = "stage 0 has receive_forward of chunk 0, microbatch 0, but no chunk of another "
               "stage comes before "
               "it";
  }
  SUBCASE("whole and split backward passes of one microbatch") {
    first.push_back({Op::backward_input, 0, 0});
    expected = "and the other form of it";
  }
  SUBCASE("weight gradients that are never added") {
    *at(first, Op::backward, 2) = {Op::backward_input, 0, 2};
    expected = "stage 0 lacks backward_weight of chunk 0, microbatch 2";
  }
  SUBCASE("transfers in another order on the other stage") {
    std::iter_swap(at(last, Op::receive_forward, 1), at(last, Op::receive_forward, 2));
    std::iter_swap(at(last, Op::forward, 1), at(last, Op::forward, 2));
    std::iter_swap(at(last, Op::backward, 1), at(last, Op::backward, 2));
    std::iter_swap(at(last, Op::send_backward, 1), at(last, Op::send_backward, 2));
    expected = "stages 0 and 1 have their transfers in another order: send_forward of chunk 0, "
               "microbatch 1 meets receive_forward of chunk 0, microbatch 2";
  }
  const std::string found = refusal(args, lists);
  CAPTURE(found);
  CHECK(found.find(expected) != std::string::npos);
}

TEST_CASE("lists that only milder transports than NCCL would let pass") {
  // Both stages send first: each waits for the other to receive.
  const Args args{2, 2, 1};
  const InstructionLists lists{
      {{Op::forward, 0, 0},
       {Op::receive_backward, 0, 0},
       {Op::send_forward, 0, 0},
       {Op::receive_forward, 1, 0},
       {Op::forward, 1, 0},
       {Op::send_forward, 1, 0},
       {Op::receive_backward, 1, 0},
       {Op::backward, 1, 0},
       {Op::send_backward, 1, 0},
       {Op::backward, 0, 0}},
      {{Op::receive_forward, 0, 0},
       {Op::forward, 0, 0},
       {Op::send_forward, 0, 0},
       {Op::receive_forward, 1, 0},
       {Op::forward, 1, 0},
       {Op::backward, 1, 0},
       {Op::send_backward, 1, 0},
       {Op::receive_backward, 0, 0},
       {Op::backward, 0, 0},
       {Op::send_backward, 0, 0}}};
  CHECK(
      refusal(args, lists)
          .find("receive_backward of chunk 0, microbatch 0 meets receive_forward") !=
      std::string::npos
  );
}

TEST_CASE("stages that wait for one another forever are named") {
  // Stage 0 wants the gradient of microbatch 1 before it has sent microbatch 1.
  const Args args{2, 1, 2};
  const InstructionLists crossed{
      {{Op::forward, 0, 0},
       {Op::send_forward, 0, 0},
       {Op::receive_backward, 0, 0},
       {Op::backward, 0, 0},
       {Op::forward, 0, 1},
       {Op::send_forward, 0, 1},
       {Op::receive_backward, 0, 1},
       {Op::backward, 0, 1}},
      {{Op::receive_forward, 0, 0},
       {Op::receive_forward, 0, 1},
       {Op::forward, 0, 1},
       {Op::forward, 0, 0},
       {Op::backward, 0, 0},
       {Op::send_backward, 0, 0},
       {Op::backward, 0, 1},
       {Op::send_backward, 0, 1}}};
  const std::string found = refusal(args, crossed);
  CAPTURE(found);
  CHECK(found.find("stages 0 and 1 have their transfers in another order") != std::string::npos);
  CHECK_THROWS_WITH_AS(
      (void)with_transfers(
          args,
          {{{Op::forward, 0, 0}, {Op::backward, 0, 0}, {Op::forward, 0, 1}, {Op::backward, 0, 1}},
           {{Op::forward, 0, 1}, {Op::forward, 0, 0}, {Op::backward, 0, 0}, {Op::backward, 0, 1}}}
      ),
      doctest::Contains("waits forever"),
      Error
  );
}

TEST_CASE("sizes that a schedule does not take are refused with the nearest") {
  CHECK_THROWS_WITH_AS(
      (void)pipeline::one_forward_one_backward({4, 2, 6}),
      doctest::Contains("6 microbatches are not divisible by parallel.pipeline 4"),
      Error
  );
  CHECK_THROWS_WITH_AS(
      (void)pipeline::zero_bubble({4, 2, 8}), doctest::Contains("virtual_stages is 2"), Error
  );
  CHECK_THROWS_WITH_AS(
      (void)pipeline::zero_bubble_vee({4, 1, 8}), doctest::Contains("virtual_stages is 1"), Error
  );
}
