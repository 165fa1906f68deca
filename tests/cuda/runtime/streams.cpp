#include "streams.hpp"

#include <condition_variable>
#include <mutex>
#include <set>

namespace {

struct Stuck {
  std::mutex mutex;
  std::condition_variable changed;
  std::set<void*> all; // streams and events
};

Stuck& stuck() {
  static auto* const stuck = new Stuck;
  return *stuck;
}

} // namespace

namespace empty {

void record(void* event, void* stream) {
  const std::scoped_lock lock(stuck().mutex);
  if (stuck().all.contains(stream)) {
    stuck().all.insert(event);
  } else {
    stuck().all.erase(event);
  }
}

void wait_for(void* stream, void* event) {
  const std::scoped_lock lock(stuck().mutex);
  if (stuck().all.contains(event)) {
    stuck().all.insert(stream);
  }
}

bool done(void* stream_or_event) {
  const std::scoped_lock lock(stuck().mutex);
  return !stuck().all.contains(stream_or_event);
}

void await(void* stream_or_event) {
  std::unique_lock lock(stuck().mutex);
  stuck().changed.wait(lock, [&] { return !stuck().all.contains(stream_or_event); });
}

void await_all() {
  std::unique_lock lock(stuck().mutex);
  stuck().changed.wait(lock, [] { return stuck().all.empty(); });
}

} // namespace empty

void empty_stick(void* stream) {
  const std::scoped_lock lock(stuck().mutex);
  stuck().all.insert(stream);
}

void empty_release() {
  const std::scoped_lock lock(stuck().mutex);
  stuck().all.clear();
  stuck().changed.notify_all();
}
