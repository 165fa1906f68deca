#pragma once
/// A thread of each process that says which rank the others wait for, long before a collective
/// fails.
///
/// Each rank tells the store a few times in `after` seconds where it is. A rank that has come no
/// further for half of that looks at the others. One rank speaks: the first that answers.

#include "core/mesh/collective_log.hpp"
#include "core/mesh/stall.hpp"
#include "megahost/export.hpp"

#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace c10d {
class Store;
}

namespace mh {

class MH_API HangWatch {
public:
  using Say = std::function<void(const std::string&)>;

  struct Terms {
    int64_t rank = 0, ranks = 1, local_ranks = 1;
    /// Seconds without progress before it is said; then 3, 6, 12, ... times that.
    double after = 10;
    double timeout = 600; ///< seconds after which the transport gives up
  };

  /// `store`: this connection has no other user
  /// `say`:   is called by the watch's thread
  HangWatch(
      const Terms& terms,
      c10::intrusive_ptr<c10d::Store> store,
      std::shared_ptr<CollectiveLog> log,
      Say say
  );
  ~HangWatch();
  HangWatch(const HangWatch&) = delete;
  HangWatch& operator=(const HangWatch&) = delete;

private:
  using Clock = std::chrono::steady_clock;
  using Answers = std::vector<std::pair<int64_t, std::string>>; // by rank

  /// Another rank, as the store knows it.
  struct Other {
    std::optional<Clock::time_point> asked; // first, or when its beat changed last
    int64_t beat = -1;                      // beat of its last answer
    SeenRank seen;
  };

  void run();
  void look(const RankProgress& own);
  void take_answers();
  void visit(const RankProgress& own, const std::vector<int64_t>& ask);
  [[nodiscard]] std::vector<int64_t> whom_to_ask() const;
  [[nodiscard]] bool speaks() const;
  [[nodiscard]] bool store_is_silent() const;
  [[nodiscard]] bool is_silent(int64_t rank) const;
  void judge(const RankProgress& own);
  void forget();

  Terms terms_;
  c10::intrusive_ptr<c10d::Store> store_;
  std::shared_ptr<CollectiveLog> log_;
  Say say_;
  std::string host_;
  std::chrono::duration<double> tick_;

  int64_t beat_ = 0;
  std::future<Answers> answers_; // answers of the visit to the store that is under way
  Clock::time_point visited_{};  // when it began
  std::vector<Other> others_;    // by rank
  std::string first_host_;       // rank 0's, once it has told
  int ticks_ = 0;                // in a row without progress
  double next_ = 0;              // seconds without progress at which something is said
  std::optional<std::pair<Clock::time_point, Stall>> said_; // since when, and what was said last

  std::mutex mutex_;
  std::condition_variable ends_;
  bool ended_ = false;
  std::thread thread_; // the last member: it uses the others
};

} // namespace mh
