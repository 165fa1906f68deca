#pragma once
/// The last collectives and transfers of a rank, for the sentences that are said when one of them
/// fails or takes long, and for the record that such a rank leaves.

#include "megahost/error.hpp"

#include <ATen/core/Tensor.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

namespace mh {

/// One collective as a rank began it.
struct Collective {
  int64_t number = 0; ///< number among all that the rank began, from 1
  std::string name;   ///< "all-reduce", "send to 1"
  std::string group, dtype;
  std::vector<int64_t> sizes;

  /// "#12 all-reduce in tp:0,1 of [4, 8] Float".
  [[nodiscard]] std::string text() const;
};

/// The place of a rank, which it reports to the ranks that wait for it.
struct RankProgress {
  int64_t step = 0;   ///< step of the run; 0 before the first
  double seconds = 0; ///< since the rank began a collective, or began or ended to wait for one
  Collective last{};  ///< the collective that was begun last; of number 0: none was
  std::optional<Collective> waits_in{}; ///< the collective that it waits in right now
  int64_t sequence = 0; ///< number of `waits_in` among the collectives of its group, from 1
  std::vector<int64_t> waits_for{}; ///< the ranks that `waits_in` needs, this one left out
  bool transfer = false;            ///< `waits_in` is a send or a receive
  std::map<std::string, int64_t>
      begun{}; ///< collectives of each group that had any, without transfers
};

/// Thread:  one begins and waits; any may ask
class CollectiveLog {
public:
  static constexpr size_t kDims = 5;

  struct Entry {
    int64_t number = 0;   ///< from 1
    int64_t sequence = 0; ///< among the collectives of the group, from 1; of a transfer 0
    const char* name = nullptr;
    size_t group = 0;  ///< number that `add_group` gave it
    int64_t peer = -1; ///< the other member of a transfer; -1: no transfer
    at::ScalarType dtype = at::kFloat;
    size_t dims = 0;
    std::array<int64_t, kDims> sizes{};
    int64_t step = 0;
    std::chrono::steady_clock::time_point begun{};
    std::optional<std::chrono::steady_clock::time_point> over{}; ///< the rank has waited for it
  };

  /// The rank waits for a collective while this object lives.
  class Wait {
  public:
    Wait(CollectiveLog& log, const Entry& entry);
    ~Wait();
    Wait(const Wait&) = delete;
    Wait& operator=(const Wait&) = delete;

  private:
    CollectiveLog& log_;
    int64_t number_;
    std::chrono::steady_clock::time_point began_ = std::chrono::steady_clock::now();
  };

  /// The number under which a group begins its operations; `members` are ranks of the run.
  size_t add_group(std::string name, std::vector<int64_t> members);

  /// Notes an operation that begins; `name` must outlive the log.
  Entry begin(const char* name, size_t group, const at::Tensor& tensor, int64_t peer = -1);

  /// Seconds that the rank has waited in collectives and transfers so far.
  [[nodiscard]] double waited() const;

  /// The step that the rank is in.
  void begin_step(int64_t step);

  [[nodiscard]] Collective collective(const Entry& entry) const;

  /// The last ones, newest first.
  [[nodiscard]] std::vector<Collective> last() const;

  /// The same as text: "#12 all-reduce in tp:0,1 of [4, 8] Float, before it #11 ...".
  [[nodiscard]] std::string text() const;

  /// A line for each of the last thousand, the oldest first: number, step, when it was begun, how
  /// long until the rank had waited for it, and what it was. Where a device has a queue of its own,
  /// these are the times of the host.
  [[nodiscard]] std::string record() const;

  /// `rank`: this one.
  [[nodiscard]] RankProgress progress(int64_t rank) const;

private:
  static constexpr size_t kKept = 1000;
  static constexpr size_t kShown = 4; // collectives in a sentence
  using Clock = std::chrono::steady_clock;

  struct GroupTally {
    std::string name;
    std::vector<int64_t> members;
    int64_t begun = 0; // without transfers
  };

  [[nodiscard]] Collective described(const Entry& entry) const;
  [[nodiscard]] std::vector<Collective> described_last() const;

  /// The place in the ring of the collective of this number.
  [[nodiscard]] static size_t place(int64_t number) {
    return static_cast<size_t>(number - 1) % kKept;
  }

  mutable std::mutex mutex_;
  std::deque<GroupTally> groups_;
  int64_t count_ = 0;
  std::vector<Entry> entries_; // a ring once it has kKept
  std::optional<Entry> waits_in_;
  Clock::duration waited_{};
  int64_t step_ = 0;
  Clock::time_point moved_ = Clock::now();
};

/// A collective failed: a rank is gone, does not answer, or is at another one.
class CollectiveError : public Error {
public:
  CollectiveError(const std::string& message, const std::string& hint, std::vector<Collective> last)
      : Error(message, hint, exit_code::communication)
      , last_(std::move(last)) {}

  /// This rank's last collectives, newest first.
  [[nodiscard]] const std::vector<Collective>& last() const { return last_; }

private:
  std::vector<Collective> last_;
};

/// "rank 3", "ranks 1, 2 and 5"; of many the first ones.
[[nodiscard]] std::string ranks_text(const std::vector<int64_t>& ranks);

/// Rank 0's report of a failure: which rank is at which collective, and which field differs. `last`
/// is each rank's newest one; a number of 0: the rank does not answer.
[[nodiscard]] std::string compare_collectives(const std::vector<Collective>& last);

} // namespace mh
