// The thread of a rank that says whom the others wait for.

#include "core/mesh/hang_watch.hpp"

#include <ATen/ops/zeros.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include <doctest/doctest.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <future>
#include <iterator>
#include <memory>
#include <mutex>
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

namespace {

std::string contents(const std::filesystem::path& file) {
  std::ifstream stream(file);
  return {std::istreambuf_iterator<char>(stream), {}};
}

} // namespace

TEST_CASE("each rank of a run that hangs leaves its stacks and its last collectives, once") {
  const auto folder =
      std::filesystem::temp_directory_path() / ("megahost-hang-" + std::to_string(getpid()));
  const auto store = c10::make_intrusive<c10d::HashStore>();
  const std::array logs{std::make_shared<CollectiveLog>(), std::make_shared<CollectiveLog>()};
  const at::Tensor x = at::zeros({2, 3});
  std::vector<std::unique_ptr<HangWatch>> watches;
  std::mutex mutex;
  std::string said;
  for (int64_t rank = 0; rank < 2; ++rank) {
    const auto& log = logs.at(static_cast<size_t>(rank));
    const size_t group = log->add_group("dp:0,1", {0, 1});
    log->begin_step(7);
    const auto entry = log->begin("all-gather", group, x);
    { const CollectiveLog::Wait waited(*log, entry); }
    watches.push_back(std::make_unique<HangWatch>(
        HangWatch::Terms{.rank = rank, .ranks = 2, .local_ranks = 2, .after = 0.8, .timeout = 60},
        store,
        log,
        [&](const std::string& text) {
          const std::lock_guard lock(mutex);
          said += text + "\n";
        }
    ));
    watches.back()->leave_reports(folder);
  }
  const auto report = [&](int rank) { return folder / ("rank-" + std::to_string(rank) + ".txt"); };
  {
    const CollectiveLog::Wait waits(*logs[0], logs[0]->begin("all-reduce", 0, x));
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (contents(report(1)).find("thread ") == std::string::npos ||
           contents(report(0)).find("thread ") == std::string::npos) {
      REQUIRE(std::chrono::steady_clock::now() < end);
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
  }
  watches.clear();
  CHECK(said.find("waiting for rank 1 on ") != std::string::npos);
  CHECK(said.find("; stacks and last collectives: " + folder.string()) != std::string::npos);
  const std::string waiting = contents(report(0)), busy = contents(report(1));
  CAPTURE(waiting);
  CHECK(
      waiting.find("#1 all-gather in dp:0,1 of [2, 3] Float, its 1. there\n") != std::string::npos
  );
  CHECK(
      waiting.find("#2 all-reduce in dp:0,1 of [2, 3] Float, its 2. there: waits in it\n") !=
      std::string::npos
  );
  CHECK(waiting.find("mh::HangWatch::run()") != std::string::npos);
  CHECK(busy.starts_with("rank 1 on "));
  CHECK(busy.find("no progress for ") != std::string::npos);
  CHECK(busy.find("all-reduce in dp:0,1 of [2, 3] Float, its") == std::string::npos);
  std::filesystem::remove_all(folder);
}

} // namespace hang_watch_tests
