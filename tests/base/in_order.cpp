#include "core/base/in_order.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <set>
#include <stdexcept>
#include <string>

namespace {

/// 0 ... count - 1, then nothing; throws at `bad`.
struct Source {
  int count = 0;
  int bad = -1;
  int next = 0;

  std::optional<int> operator()() {
    if (next == bad) {
      throw std::runtime_error("next " + std::to_string(next));
    }
    return next < count ? std::optional(next++) : std::nullopt;
  }
};

/// The results that came out, and the exception that was thrown.
std::pair<std::vector<int>, std::string>
run(size_t workers, Source source, int bad_work = -1, int bad_take = -1) {
  std::vector<int> taken;
  std::string thrown;
  try {
    mh::in_order(
        workers,
        [&] { return source(); },
        [&](int item) {
          std::this_thread::sleep_for(std::chrono::microseconds(item % 7 * 10));
          if (item == bad_work || (bad_work >= 0 && item == bad_work + 1)) {
            throw std::runtime_error("work " + std::to_string(item));
          }
          return item * 10;
        },
        [&](int result) {
          if (result == bad_take * 10) {
            throw std::runtime_error("take " + std::to_string(result));
          }
          taken.push_back(result);
        }
    );
  } catch (const std::runtime_error& error) {
    thrown = error.what();
  }
  return {taken, thrown};
}

std::vector<int> tens(int count) {
  std::vector<int> values;
  for (int i = 0; i < count; ++i) {
    values.push_back(i * 10);
  }
  return values;
}

} // namespace

TEST_CASE("results are taken in the order of the items, for any number of workers") {
  for (const size_t workers : {1U, 2U, 5U, 16U}) {
    CAPTURE(workers);
    CHECK(run(workers, {.count = 300}) == std::pair(tens(300), std::string()));
    CHECK(run(workers, {.count = 0}) == std::pair(tens(0), std::string()));
  }
}

TEST_CASE("the first item that fails decides, whoever comes to it first") {
  for (const size_t workers : {1U, 3U, 8U}) {
    CAPTURE(workers);
    for (int i = 0; i < 20; ++i) {
      CHECK(run(workers, {.count = 100}, 41) == std::pair(tens(41), std::string("work 41")));
      CHECK(run(workers, {.count = 100}, -1, 41) == std::pair(tens(41), std::string("take 410")));
      CHECK(run(workers, {.count = 100, .bad = 41}) == std::pair(tens(41), std::string("next 41")));
      CHECK(
          run(workers, {.count = 100, .bad = 50}, 41) == std::pair(tens(41), std::string("work 41"))
      );
    }
  }
}

TEST_CASE("workers work at the same time") {
  std::mutex mutex;
  std::set<std::thread::id> seen;
  std::condition_variable both;
  Source source{.count = 2};
  mh::in_order(
      2,
      [&] { return source(); },
      [&](int item) { // ends only when two threads are in it
        std::unique_lock lock(mutex);
        seen.insert(std::this_thread::get_id());
        both.notify_all();
        both.wait(lock, [&] { return seen.size() == 2; });
        return item;
      },
      [](int) {}
  );
  CHECK(seen.size() == 2);
}

TEST_CASE("workers wait neither for one that is slow nor for what is taken") {
  std::mutex mutex;
  std::condition_variable changed;
  int worked = 0; // items
  const auto others_work = [&](int count) {
    std::unique_lock lock(mutex);
    return changed.wait_for(lock, std::chrono::seconds(60), [&] { return worked >= count; });
  };
  bool slow_item = false, slow_take = false;
  std::vector<int> taken;
  Source source{.count = 20};
  mh::in_order(
      2,
      [&] { return source(); },
      [&](int item) {
        if (item == 0) {
          slow_item = others_work(5);
        }
        const std::lock_guard lock(mutex);
        ++worked;
        changed.notify_all();
        return item;
      },
      [&](int item) {
        if (item == 8) {
          slow_take = others_work(14);
        }
        taken.push_back(item);
      }
  );
  CHECK(slow_item);
  CHECK(slow_take);
  CHECK(taken.size() == 20);
  CHECK(std::ranges::is_sorted(taken));
}
