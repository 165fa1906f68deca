#pragma once
/// Work on a sequence by several threads, with the same result as by one.

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

namespace mh {

/// Calls `take(work(item))` for every item of `next`, an optional that is empty at the end.
///
/// `work` runs on `workers` threads at once; `next` and `take` on one at a time, both in the order
/// of the items. At most one item for each worker is held. Throws what the first item that fails
/// throws, after the items before it were taken.
template <class Next, class Work, class Take>
void in_order(size_t workers, Next next, Work work, Take take) {
  std::mutex reading, taking;
  std::condition_variable taken;
  uint64_t read = 0, turn = 0; // items
  std::atomic<bool> ended = false;
  std::exception_ptr failure;

  const auto run = [&] {
    while (true) {
      std::unique_lock read_lock(reading);
      if (ended) {
        return;
      }
      std::exception_ptr error;
      decltype(next()) item;
      try {
        item = next();
      } catch (...) {
        error = std::current_exception();
      }
      ended = !item.has_value();
      if (!item && !error) {
        return;
      }
      const uint64_t number = read++;
      read_lock.unlock();

      std::optional<decltype(work(std::move(*item)))> result;
      if (!error) {
        try {
          result.emplace(work(std::move(*item)));
        } catch (...) {
          error = std::current_exception();
        }
      }
      std::unique_lock take_lock(taking);
      taken.wait(take_lock, [&] { return turn == number; });
      if (!failure && !error) {
        try {
          take(std::move(*result));
        } catch (...) {
          error = std::current_exception();
        }
      }
      if (!failure && error) {
        failure = error;
        ended = true;
      }
      ++turn;
      taken.notify_all();
    }
  };
  {
    std::vector<std::jthread> threads;
    for (size_t i = 0; i < workers; ++i) {
      threads.emplace_back(run);
    }
  }
  if (failure) {
    std::rethrow_exception(failure);
  }
}

} // namespace mh
