#pragma once
/// A thread of each process that says which rank the others wait for, long before a collective
/// fails.
///
/// Each rank tells the store a few times in `after` seconds where it is. A rank that has come no
/// further for half of that looks at the others. One rank speaks: the first that answers. Then each
/// that makes no progress leaves a report in the run folder (hang_report.hpp), and the one that speaks
/// leaves it for those of its machine that do not answer.

#include "core/mesh/collective_log.hpp"
#include "core/mesh/stall.hpp"
#include "megahost/export.hpp"

#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <filesystem>
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

  /// From now on reports are left in `folder`, which is made for the first.
  void leave_reports(std::filesystem::path folder);

  /// Leaves the report of a rank whose collective has failed, unless it has left one of a hang that
  /// lasts.
  void failed(const std::string& why);

private:
  using Clock = std::chrono::steady_clock;

  /// The findings of a visit to the store.
  struct Answers {
    std::vector<std::pair<int64_t, std::string>> ranks; // by rank
    std::string hang; // what another rank has said of a hang that lasts; empty: nothing
  };

  /// Another rank, as the store knows it.
  struct Other {
    std::optional<Clock::time_point> asked; // first, or when its beat changed last
    int64_t beat = -1;                      // beat of its last answer
    SeenRank seen;
    pid_t process = 0; // 0: it has not told
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
  void report(const RankProgress& own);
  [[nodiscard]] std::filesystem::path folder_of_report();
  [[nodiscard]] pid_t process_of(int64_t rank) const;
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
  pid_t first_process_ = 0;      // likewise
  int ticks_ = 0;                // in a row without progress
  double next_ = 0;              // seconds without progress at which something is said
  std::optional<std::pair<Clock::time_point, Stall>> said_; // since when, and what was said last
  std::string sentence_; // that this rank has said of a hang that lasts
  std::optional<std::string>
      tells_;          // what the next visit tells the others of a hang; "": it is over
  std::string heard_;  // what another rank has said of a hang that lasts
  std::thread writer_; // writes it: this watch must go on to answer

  std::mutex mutex_;             // guards the next ones
  std::filesystem::path folder_; // for reports; empty: none
  bool reported_ = false;        // this rank's report of a hang that lasts is written
  std::condition_variable ends_;
  bool ended_ = false;
  std::thread thread_; // the last member: it uses the others
};

} // namespace mh
