// Rates that were measured, and what plans make of them.

#include "core/plan/rates.hpp"

#include "core/plan/clock.hpp"

#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>

#include <doctest/doctest.h>

namespace rates_tests {

using namespace mh;

namespace {

PlanEvent product(int64_t m, double seconds) {
  PlanEvent event{.kind = PlanEvent::Kind::product, .name = "aten::mm"};
  event.m = m;
  event.n = event.k = 100;
  event.flops = 2e4 * static_cast<double>(m);
  event.seconds = seconds;
  return event;
}

PlanEvent copy(double bytes, double seconds) {
  return {
      .kind = PlanEvent::Kind::memory, .name = "aten::copy_", .bytes = bytes, .seconds = seconds};
}

} // namespace

TEST_CASE("what was measured takes as long again; twice the same size is one rate") {
  const std::vector<PlanEvent> events{
      product(100, 1e-3), product(100, 3e-3), product(400, 4e-3), copy(1e6, 1e-3)};
  Calibration fit;
  fit.rates = rates_of(events);
  REQUIRE(fit.rates.size() == 2);
  CHECK(fit.rates.at("aten::mm Float").size() == 2);
  CHECK(*measured_seconds(product(100, 0), fit) == doctest::Approx(2e-3).epsilon(0.01));
  CHECK(*measured_seconds(product(400, 0), fit) == doctest::Approx(4e-3).epsilon(0.01));
  CHECK(*measured_seconds(copy(1e9, 0), fit) == doctest::Approx(1).epsilon(0.01));
}

TEST_CASE("between two sizes the rate lies between theirs, nearer to that of the nearer one") {
  Calibration fit;
  fit.rates = rates_of(std::vector{product(100, 4e-3), product(400, 4e-3)}); // 0.5 and 2 GFLOP/s
  const auto rate = [&](int64_t m) {
    const PlanEvent event = product(m, 0);
    return event.flops / *measured_seconds(event, fit);
  };
  CHECK(rate(200) == doctest::Approx(1e9));
  CHECK(rate(120) < 0.7e9);
  CHECK(rate(350) > 1.7e9);
  CHECK(rate(800) < 2e9);
}

TEST_CASE("another type, dropout and what was not measured are other kinds") {
  Calibration fit;
  fit.rates = rates_of(std::vector{product(100, 4e-3)});
  PlanEvent event = product(100, 0);
  event.type = at::kBFloat16;
  CHECK_FALSE(measured_seconds(event, fit).has_value());
  event.type = at::kFloat;
  event.dropout = true;
  CHECK_FALSE(measured_seconds(event, fit).has_value());
  CHECK_FALSE(measured_seconds(copy(1, 0), fit).has_value());
  CHECK_FALSE(measured_seconds(product(100, 0), {}).has_value());
}

TEST_CASE("an event's time is that of its rate and of the way to the next one") {
  Machine machine;
  machine.calibration.rates = rates_of(std::vector{copy(1e6, 1e-3)});
  machine.calibration.between_us = 500;
  CHECK(event_time(copy(2e6, 0), machine) == doctest::Approx(2.5e-3).epsilon(0.01));
}

TEST_CASE("a step that is recorded where it runs says how long each operation took") {
  PlanRecorder recorder;
  const at::Tensor a = at::ones({200, 300});
  (void)at::mm(a, a.t());
  REQUIRE(recorder.events().size() >= 1);
  const PlanEvent& event = recorder.events().back();
  CHECK(event.kind == PlanEvent::Kind::product);
  CHECK(event.m == 200);
  CHECK(event.k == 300);
  CHECK(event.seconds > 0);
  CHECK(event.seconds < 10);
}

} // namespace rates_tests
