// The thread of a rank that says whom the others wait for.

#include "core/mesh/hang_watch.hpp"

#include <ATen/ops/zeros.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include <doctest/doctest.h>

#include <chrono>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

namespace hang_watch_tests {

using namespace mh;

namespace {

/// A store in a process that is stopped: what is told to it gets lost, what is asked is not answered
/// until it goes on.
class StoppedStore : public c10d::HashStore {
public:
  explicit StoppedStore(std::shared_future<void> goes_on)
      : goes_on_(std::move(goes_on)) {}

  bool check(const std::vector<std::string>& keys) override {
    goes_on_.wait();
    return c10d::HashStore::check(keys);
  }

private:
  std::shared_future<void> goes_on_;
};

} // namespace

TEST_CASE("rank 0 is named that is stopped, with the store, before any rank has heard of it") {
  constexpr auto kMoment = std::chrono::milliseconds(20);
  std::promise<void> goes_on;
  std::promise<std::string> said;
  const auto log = std::make_shared<CollectiveLog>();
  const size_t group = log->add_group("tp:0,1", {0, 1});
  const at::Tensor x = at::zeros({2});
  {
    const HangWatch watch(
        {.rank = 1, .ranks = 2, .local_ranks = 2, .after = 0.8, .timeout = 60},
        c10::make_intrusive<StoppedStore>(goes_on.get_future().share()),
        log,
        [&said, once = false](const std::string& text) mutable {
          if (!std::exchange(once, true)) {
            said.set_value(text);
          }
        }
    );
    for (int i = 0; i < 20; ++i) { // rank 1 goes on while it asks in vain
      log->begin("all-reduce", group, x);
      std::this_thread::sleep_for(kMoment);
    }
    const CollectiveLog::Wait waits(*log, log->begin("all-reduce", group, x));
    auto text = said.get_future();
    REQUIRE(text.wait_for(std::chrono::seconds(60)) == std::future_status::ready);
    CHECK(text.get().find("waiting for rank 0, which does not answer") != std::string::npos);
    goes_on.set_value();
  }
}

} // namespace hang_watch_tests
