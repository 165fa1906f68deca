// Collectives in pieces that overlap GEMMs: what is left to wait for.

#include "core/plan/clock.hpp"

#include <doctest/doctest.h>

namespace clock_tests {

using namespace mh;

namespace {

constexpr double kProduct = 1e-3;  // seconds
constexpr double kTransfer = 8e-5; // seconds to transfer an eighth

/// A product that takes kProduct however it is cut, and a collective of eight ranks.
struct Step {
  PlanEvent product{
      .kind = PlanEvent::Kind::product, .type = at::kBFloat16, .flops = 1e9 * kProduct, .m = 4096};
  PlannedCollective collective;
  Machine machine;

  explicit Step(const char* name) {
    SilentGroup group;
    group.axis = "tp";
    group.members = {0, 1, 2, 3, 4, 5, 6, 7};
    collective.name = name;
    collective.group = std::make_shared<const SilentGroup>(group);
    const bool gathers = std::string_view(name) == "all-gather";
    collective.bytes = static_cast<int64_t>(1e9 * kTransfer) * (gathers ? 1 : 8);
    machine.hardware.ranks_per_node = 8;
    machine.hardware.processors = 100;
    machine.hardware.link_gb_s = 1;
    machine.hardware.memory_tb_s = 1;
    machine.calibration.link = 1;
    machine.calibration.memory = 1;
    machine.calibration.link_us = 0;
    machine.calibration.pieces = {"tp"};
    machine.calibration.rates["aten::mm BFloat16"] = {{.size = {1, 4096, 1, 1}, .g_per_s = 1}};
    product.name = "aten::mm";
  }

  [[nodiscard]] PassTime run(bool backward = false) const {
    const PlanEvent start{.kind = PlanEvent::Kind::start, .backward = backward};
    const PlanEvent wait{.kind = PlanEvent::Kind::wait};
    const bool gathers = std::string_view(collective.name) == "all-gather";
    const std::vector<PlanEvent> events =
        gathers ? std::vector{start, wait, product} : std::vector{product, start, wait};
    return pass_time(events, {collective}, machine);
  }

  [[nodiscard]] double waits(bool backward = false) const { return run(backward).exposed.at("tp"); }
};

} // namespace

TEST_CASE("a piece for each rank: all transfers overlap the GEMM") {
  CHECK(Step("all-gather").waits() == doctest::Approx(0));
  CHECK(Step("reduce-scatter").waits() == doctest::Approx(0));
}

TEST_CASE("a collective longer than its product leaves one piece of that alone") {
  for (const char* name : {"all-gather", "reduce-scatter"}) {
    Step step(name);
    step.machine.hardware.link_gb_s = 0.1; // seven transfers of 0.8 ms
    CHECK(step.waits() == doctest::Approx(70 * kTransfer - kProduct * 7 / 8));
  }
}

TEST_CASE("fewer pieces than ranks: each is a collective, the last overlaps nothing") {
  Step step("reduce-scatter");
  step.machine.calibration.sum_pieces = 4;
  CHECK(step.waits() == doctest::Approx(7 * kTransfer / 4));
  step.machine.calibration.link_us = 2; // three rounds
  CHECK(step.waits() == doctest::Approx(7 * kTransfer / 4 + 6e-6));
}

TEST_CASE("sums take processors from the product, or memory when all pieces are there") {
  Step step("reduce-scatter");
  CHECK(step.run().products == doctest::Approx(kProduct));
  step.machine.calibration.sum_channels = 10;
  CHECK(step.run().products == doctest::Approx(kProduct + 0.1 * 7 * kTransfer));
  CHECK(step.run().memory == 0);
  step.machine.calibration.sums_after = true;
  CHECK(step.run().memory == doctest::Approx(9e-3 * kTransfer));
}

TEST_CASE("gradients that several products add to are summed in one piece") {
  Step step("reduce-scatter");
  step.machine.calibration.backward_sum_pieces = false;
  CHECK(step.waits() == doctest::Approx(0));
  CHECK(step.waits(true) == doctest::Approx(7 * kTransfer));
}

TEST_CASE("where no rate of links is known, latency is all") {
  Step step("all-gather");
  step.machine.hardware.link_gb_s = 0;
  step.machine.calibration.link_us = 300;
  CHECK(step.waits() == doctest::Approx(7 * 3e-4 - kProduct * 7 / 8));
}

} // namespace clock_tests
