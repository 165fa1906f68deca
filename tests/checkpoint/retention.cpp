// Checkpoints that stay: by number, step, loss and time, whatever fails or reads meanwhile.

#include "core/checkpoint/retention.hpp"

#include "core/base/seconds.hpp"
#include "core/checkpoint/native.hpp"
#include "core/foreign/dcp.hpp"
#include "core/storage/memory_storage.hpp"
#include "core/storage/temporary_folder.hpp"
#include "samples.hpp"
#include "tests/formats/refusal.hpp"

#include <doctest/doctest.h>

#include <cerrno>
#include <limits>

using mh::MemoryStorage;
using mh::NativeFormat;
using mh::Retention;
using mh::SavedStep;
using namespace mh::test;

namespace {

using Steps = std::vector<int64_t>;

/// A save each half hour from step 10 on, newest first; steps 20, 30, 40 and 60 were evaluated.
std::vector<SavedStep> half_hours() {
  return {
      {60, 9000, 2.5},
      {50, 7200, std::nullopt},
      {40, 5400, 2.0},
      {30, 3600, 3.0},
      {20, 1800, 2.0},
      {10, std::nullopt, std::nullopt}};
}

Steps old_of(const Retention& retention, double now = 9000) {
  return mh::old_steps(half_hours(), retention, now);
}

/// A run's checkpoints in memory.
struct Saved {
  MemoryStorage store;
  NativeFormat format{{}, {.storage = store}};
  std::vector<std::string> warnings;

  explicit Saved(MemoryStorage::Objects objects = {})
      : store(std::move(objects)) {}

  void save(int64_t step, const std::string& state = "{}") {
    const auto slices = model(static_cast<double>(step));
    format.write("run", {.step = step, .state = state, .slices = slices}, {});
  }

  void retain(const Retention& retention) {
    mh::remove_old_checkpoints(format, "run", retention, [&](const std::string& text) {
      warnings.push_back(text);
    });
  }

  [[nodiscard]] Steps steps() const { return *format.steps("run"); }

  void damage(int64_t step) {
    for (const auto& [name, bytes] : store.objects()) {
      const std::string digits = std::to_string(1'000'000'000'000 + step).substr(1);
      if (contains(name, "step-" + digits) && name.ends_with(".safetensors")) {
        store.contents(name).back() ^= 1;
      }
    }
  }
};

} // namespace

TEST_CASE("each rule keeps some, and what none keeps is old") {
  CHECK(old_of({}).empty());
  CHECK(old_of({.best = 1}).empty()); // keep = 0 keeps all
  CHECK(old_of({.keep = 2}) == Steps{40, 30, 20, 10});
  CHECK(old_of({.keep = 9}).empty());
  CHECK(old_of({.keep = 1, .every = 20}) == Steps{50, 30, 10});
  CHECK(old_of({.keep = 1, .best = 1}) == Steps{50, 30, 20, 10}); // the newest of equal losses
  CHECK(old_of({.keep = 1, .best = 2}) == Steps{50, 30, 10});
  CHECK(old_of({.keep = 1, .best = 9}) == Steps{50, 10});
  CHECK(old_of({.keep = 1, .for_hours = 1}) == Steps{40, 30, 20, 10}); // 5400 is an hour before
  CHECK(old_of({.keep = 1, .for_hours = 1}, 8999) == Steps{30, 20, 10});
  CHECK(old_of({.keep = 1, .per_hours = 1}) == Steps{40, 10}); // 1800, 3600, 7200 begin hours
  CHECK(old_of({.keep = 1, .best = 1, .per_hours = 1}) == Steps{10});
}

TEST_CASE("the first of each span stays, save after save") {
  Retention retention{.keep = 1, .per_hours = 1};
  std::vector<SavedStep> steps;
  for (int64_t step = 1; step <= 40; ++step) { // every six minutes
    const double now = 360.0 * static_cast<double>(step);
    steps.insert(steps.begin(), {step, now, std::nullopt});
    for (const int64_t old : mh::old_steps(steps, retention, now)) {
      std::erase_if(steps, [old](const SavedStep& one) { return one.step == old; });
    }
  }
  Steps left;
  for (const SavedStep& one : steps) {
    left.push_back(one.step);
  }
  CHECK(left == Steps{40, 30, 20, 10, 1});
}

TEST_CASE_FIXTURE(Saved, "losses and times are those of the checkpoints' states") {
  const double now = mh::unix_now();
  const auto state = [](double time, double loss) {
    return nlohmann::json{{"time", time}, {"validation_loss", loss}}.dump();
  };
  save(1, state(now - 9000, 1.5));
  save(2, state(now - 8000, 1.0));
  save(3, state(now - 60, 4.0));
  save(4, state(now - 30, std::numeric_limits<double>::quiet_NaN())); // JSON has none: null
  save(5);
  retain({.keep = 1, .best = 1, .for_hours = 1});
  CHECK(steps() == Steps{5, 4, 3, 2});
  CHECK(warnings.empty());
}

TEST_CASE_FIXTURE(Saved, "the newest whole one stays, however old it is") {
  for (int64_t step = 1; step <= 5; ++step) {
    save(step);
  }
  SUBCASE("all whole") {
    retain({.keep = 2});
    CHECK(steps() == Steps{5, 4});
  }
  SUBCASE("the newest two damaged") {
    damage(5);
    damage(4);
    retain({.keep = 1});
    CHECK(steps() == Steps{5, 3});
  }
  SUBCASE("none whole") {
    for (int64_t step = 1; step <= 5; ++step) {
      damage(step);
    }
    retain({.keep = 1});
    CHECK(steps().size() == 5);
    CHECK(contains(warnings.back(), "old checkpoints are not removed: run/checkpoints: no "));
  }
}

TEST_CASE("ended after any call of a removal, the newest is whole and nothing is half there") {
  bool stopped = true;
  for (size_t at = 1; stopped; ++at) {
    Saved saved;
    for (int64_t step = 1; step <= 3; ++step) {
      saved.save(step);
    }
    saved.store.fault = MemoryStorage::Fault{saved.store.calls + at, EIO, true};
    saved.retain({.keep = 1});
    stopped = saved.store.calls >= saved.store.fault->at;
    CAPTURE(at);
    Saved next(saved.store.objects());
    CHECK(next.steps().front() == 3);
    for (const int64_t step : next.steps()) {
      CHECK(next.format.open("run", step)->verify([](uint64_t) {}).damages.empty());
    }
    next.save(4);
    next.retain({.keep = 1});
    CHECK(next.steps() == Steps{4});
  }
}

TEST_CASE("what another process reads on this disk stays until it is read") {
  const mh::TemporaryFolder folder("mh-retention");
  const auto check = [&](const mh::CheckpointFormat& format, const mh::Path& run) {
    for (int64_t step = 1; step <= 3; ++step) {
      const auto slices = model(static_cast<double>(step));
      format.write(run, {.step = step, .state = "{}", .slices = slices}, {});
    }
    const auto warn = [](const std::string& text) { FAIL(text); };
    auto reader = format.open(run, 1);
    mh::remove_old_checkpoints(format, run, {.keep = 1}, warn);
    CHECK(format.steps(run) == Steps{3, 1});
    const auto read = blank(model());
    reader->read(read);
    CHECK(equal(read, model(1)));
    reader.reset();
    mh::remove_old_checkpoints(format, run, {.keep = 1}, warn);
    CHECK(format.steps(run) == Steps{3});
  };
  check(NativeFormat({}, {.storage = mh::local_storage()}), folder.path() / "native");
  check(mh::DcpFormat({}, {.storage = mh::local_storage()}), folder.path() / "dcp");
}
