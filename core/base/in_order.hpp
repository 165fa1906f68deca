#pragma once
/// Work on a sequence by several threads, with the same result as by one.

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
/// `work` runs on `workers` threads at once, `next` on one of them at a time, `take` on the calling
/// thread; `next` and `take` in the order of the items. Workers wait neither for `take` nor for one
/// that is slow until results of four items for each worker are held. Throws what the first item
/// that fails throws, after the items before it were taken.
template <class Next, class Work, class Take>
void in_order(size_t workers, Next next, Work work, Take take) {
  using Result = decltype(work(std::move(*next())));

  struct Outcome {
    std::optional<Result> result;
    std::exception_ptr failure; // what `next` or `work` threw
  };

  std::vector<std::optional<Outcome>> outcomes(4 * workers); // by number, modulo their count
  std::mutex reading, guard; // `next` under the first; all that follows under the second
  std::condition_variable room, ready;
  uint64_t read = 0, taken = 0; // items
  bool ended = false;

  const auto end = [&] {
    const std::lock_guard lock(guard);
    ended = true;
    room.notify_all();
    ready.notify_all();
  };
  const auto run = [&] {
    while (true) {
      std::unique_lock read_lock(reading);
      {
        std::unique_lock lock(guard);
        room.wait(lock, [&] { return ended || read - taken < outcomes.size(); });
        if (ended) {
          return;
        }
      }
      Outcome outcome;
      decltype(next()) item;
      try {
        item = next();
      } catch (...) {
        outcome.failure = std::current_exception();
      }
      if (!item && !outcome.failure) {
        end();
        return;
      }
      uint64_t number = 0;
      {
        const std::lock_guard lock(guard);
        number = read++;
        ended = ended || outcome.failure;
      }
      read_lock.unlock();
      if (!outcome.failure) {
        try {
          outcome.result.emplace(work(std::move(*item)));
        } catch (...) {
          outcome.failure = std::current_exception();
        }
      }
      const std::lock_guard lock(guard);
      outcomes[number % outcomes.size()] = std::move(outcome);
      ready.notify_all();
    }
  };
  std::vector<std::jthread> threads;
  for (size_t i = 0; i < workers; ++i) {
    threads.emplace_back(run);
  }
  std::exception_ptr failure;
  while (!failure) {
    std::optional<Outcome> outcome;
    {
      std::unique_lock lock(guard);
      auto& slot = outcomes[taken % outcomes.size()];
      ready.wait(lock, [&] { return slot.has_value() || (ended && taken == read); });
      if (!slot) {
        break;
      }
      outcome = std::exchange(slot, std::nullopt);
    }
    failure = outcome->failure;
    if (!failure) {
      try {
        take(std::move(*outcome->result));
      } catch (...) {
        failure = std::current_exception();
      }
    }
    const std::lock_guard lock(guard);
    ++taken;
    room.notify_all();
  }
  end();
  threads.clear();
  if (failure) {
    std::rethrow_exception(failure);
  }
}

} // namespace mh
