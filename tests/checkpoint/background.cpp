// Saves in the background: what they keep is the copy, they stop where the storage does, and ranks
// meet over a store.

#include "core/checkpoint/background.hpp"

#include "core/checkpoint/native.hpp"
#include "core/checkpoint/retention.hpp"
#include "core/mesh/meeting.hpp"
#include "core/storage/memory_storage.hpp"
#include "samples.hpp"
#include "tests/formats/refusal.hpp"

#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <doctest/doctest.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <thread>

using mh::BackgroundSaves;
using mh::MemoryStorage;
using mh::Slice;
using namespace mh::test;

namespace {

/// `keep`: checkpoints that stay; 0: all.
constexpr int64_t kAll = 0;

BackgroundSaves::Write native(MemoryStorage& store, const int64_t& keep = kAll) {
  return [&store, &keep](const mh::CheckpointContents& contents, const mh::Ranks& ranks) {
    const mh::NativeFormat format({}, {.storage = store});
    format.write("run", contents, ranks);
    mh::remove_old_checkpoints(format, "run", {.keep = keep}, contents.warn);
  };
}

/// Values of the model at a step.
std::vector<Slice> model_at(int64_t step) {
  return model(1 + 1000.0 * static_cast<double>(step));
}

/// The newest step of a store, whose values are all of that step; 0: none.
int64_t newest(MemoryStorage::Objects objects) {
  MemoryStorage store(std::move(objects));
  const mh::NativeFormat format({}, {.storage = store});
  const auto steps = format.steps("run").value();
  if (steps.empty()) {
    return 0;
  }
  const auto saved = model_at(steps.front());
  const auto loaded = blank(saved);
  format.open("run", steps.front())->read(loaded);
  CHECK(equal(loaded, saved));
  return steps.front();
}

/// A run of one rank that changes its tensors while they are saved.
struct Run {
  MemoryStorage store;
  std::vector<Slice> slices = model_at(0);
  int64_t kept = 0;
  BackgroundSaves saves{native(store, kept), {}, {}};

  Run() { saves.plan(slices); }

  void train_to(int64_t step) {
    const auto now = model_at(step);
    for (size_t i = 0; i < now.size(); ++i) {
      slices[i].local.copy_(now[i].local);
    }
  }

  BackgroundSaves::Outcome save(int64_t step, int64_t keep = 0) {
    train_to(step);
    kept = keep;
    saves.begin({.step = step, .state = "{}", .slices = slices});
    train_to(step + 7);
    return saves.wait().value();
  }
};

} // namespace

TEST_CASE("what is saved are the values at the step, though later steps change them") {
  Run run;
  CHECK(run.saves.bytes() == 4 * 6 * 4 + 4 * 2 + 4 * 6 * 4 + 4 + 2 * 8);
  for (const int64_t step : {10, 20, 30}) {
    const auto saved = run.save(step, /*keep=*/2);
    CHECK(saved.step == step);
    CHECK_FALSE(saved.error.has_value());
    CHECK(newest(run.store.objects()) == step);
  }
  CHECK_FALSE(run.saves.wait().has_value()); // each is told once
  const auto steps = mh::NativeFormat({}, {.storage = run.store}).steps("run").value();
  CHECK(steps == std::vector<int64_t>{30, 20});
}

TEST_CASE("a storage that fails at any call leaves the checkpoint before, and saves go on after") {
  const size_t calls = [] {
    Run run;
    (void)run.save(10);
    const size_t before = run.store.calls;
    (void)run.save(20, /*keep=*/1);
    return run.store.calls - before;
  }();
  REQUIRE(calls > 10);
  size_t failed = 0;
  for (size_t at = 1; at <= calls; ++at) {
    for (const bool forever : {false, true}) { // a bad call, and a disk that is gone for a while
      CAPTURE(at);
      CAPTURE(forever);
      Run run;
      (void)run.save(10);
      run.store.fault = MemoryStorage::Fault{run.store.calls + at, EIO, forever};
      const auto saved = run.save(20, /*keep=*/1);
      failed += saved.error ? 1 : 0;
      run.store.fault.reset();
      CHECK(newest(run.store.objects()) == (saved.error ? 10 : 20));
      CHECK_FALSE(run.save(30).error.has_value());
      CHECK(newest(run.store.objects()) == 30);
      for (const auto& objects : run.store.history()) { // the process ends there
        (void)newest(objects);
      }
    }
  }
  CHECK(failed > calls / 2);
}

namespace {

/// The outcome of each rank's save in the background.
std::vector<BackgroundSaves::Outcome> save_on_ranks(
    MemoryStorage& store, const std::vector<std::vector<Slice>>& held, int64_t lost = -1
) {
  const auto shared = c10::make_intrusive<c10d::HashStore>();
  std::vector<BackgroundSaves::Outcome> outcomes(held.size());
  std::vector<std::jthread> threads;
  for (size_t rank = 0; rank < held.size(); ++rank) {
    threads.emplace_back([&, rank] {
      const auto terms = [&] {
        return mh::Meeting::Terms{
            .rank = static_cast<int64_t>(rank),
            .ranks = static_cast<int64_t>(held.size()),
            .timeout = std::chrono::seconds(60)};
      };
      mh::Meeting training(c10::make_intrusive<c10d::PrefixStore>("training", shared), terms());
      mh::Meeting background(c10::make_intrusive<c10d::PrefixStore>("saves", shared), terms());
      const bool is_lost = static_cast<int64_t>(rank) == lost;
      BackgroundSaves saves(
          [&, is_lost](const mh::CheckpointContents& contents, const mh::Ranks& ranks) {
            if (is_lost) {
              return; // it is gone: it meets no rank
            }
            native(store)(contents, ranks);
          },
          training.ranks(),
          background.ranks()
      );
      saves.plan(held[rank]);
      saves.begin({.step = 5, .state = "{}", .slices = held[rank]});
      if (lost >= 0) {
        background.end();
      }
      outcomes[rank] = saves.wait().value();
    });
  }
  return outcomes;
}

} // namespace

TEST_CASE("ranks save in the background, each slice copied and written once") {
  const Slice weight = whole("w", counting({12, 4}, 1));
  const Slice bias = whole("b", counting({12}, 100));
  std::vector<std::vector<Slice>> held;
  for (int64_t rank = 0; rank < 4; ++rank) { // two tensor parallel ranks, twice
    held.push_back({part_of(weight, 0, rank % 2, 2), bias});
  }
  MemoryStorage store;
  {
    const auto outcomes = save_on_ranks(store, held);
    for (const auto& outcome : outcomes) {
      CHECK_FALSE(outcome.error.has_value());
    }
  }
  const mh::NativeFormat format({}, {.storage = store});
  const auto loaded = blank({weight, bias});
  const auto saved = format.open("run", 5);
  saved->read(loaded);
  CHECK(equal(loaded, {weight, bias}));
  CHECK(saved->boxes().size() == 3);

  auto wrong = held;
  wrong[1][0].global_shape = {13, 4};
  wrong[3][0].global_shape = {13, 4};
  MemoryStorage empty;
  const auto failed = save_on_ranks(empty, wrong);
  for (const auto& outcome : failed) {
    REQUIRE(outcome.error.has_value());
    CHECK(std::string(outcome.error->what()) == failed[0].error->what());
  }
  CHECK(empty.objects().empty());

  MemoryStorage left;
  const auto alone = save_on_ranks(left, held, /*lost=*/2);
  CHECK(std::string(alone[0].error->what()) == "the ranks did not meet to save: a rank is lost");
  CHECK(mh::NativeFormat({}, {.storage = left}).steps("run").value().empty());
}

namespace {

/// The store of a process that is stopped: who asks it waits until the process goes on.
class StoppedStore final : public c10d::HashStore {
public:
  bool check(const std::vector<std::string>& keys) override {
    going_on_.wait(false);
    return HashStore::check(keys);
  }

  void go_on() {
    going_on_ = true;
    going_on_.notify_all();
  }

private:
  std::atomic<bool> going_on_ = false;
};

} // namespace

TEST_CASE("a rank that saves gives up a store that does not answer") {
  const auto store = c10::make_intrusive<StoppedStore>();
  const auto refused_after = [&](std::chrono::milliseconds timeout, bool ends) {
    mh::Meeting meeting(store, {.rank = 1, .ranks = 2, .timeout = timeout});
    if (ends) {
      meeting.end(); // training has lost rank 0
    }
    return refusal([&] { (void)meeting.ranks().gather("text"); });
  };
  CHECK(
      refused_after(std::chrono::hours(1), /*ends=*/true) ==
      "the ranks did not meet to save: a rank is lost"
  );
  CHECK(
      refused_after(std::chrono::milliseconds(1), /*ends=*/false) ==
      "the ranks did not meet to save: the store of rank 0 does not answer"
  );
  store->go_on();
}
