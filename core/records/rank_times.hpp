#pragma once
/// Where the time of steps goes on each rank, and the rank that all others wait for.
///
/// Each rank measures its own steps. Every 50 of them the ranks show one another the medians; one
/// that takes 1.3 times as long as those next to it is named, with the part that makes the
/// difference.

#include "core/base/seconds.hpp"
#include "core/mesh/collective_log.hpp"
#include "megahost/pipeline_schedule.hpp"
#include "megahost/ranks.hpp"

#include <array>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace mh {

enum class StepPart : uint8_t { data, forward, backward, update, waiting };
inline constexpr size_t kStepParts = 5;

/// "forward".
[[nodiscard]] const char* part_name(StepPart part);

/// Seconds of a step by part. `waiting` is in collectives and transfers, and in no other part.
struct PartTimes {
  std::array<double, kStepParts> seconds{};

  double& operator[](StepPart part) { return seconds[static_cast<size_t>(part)]; }

  double operator[](StepPart part) const { return seconds[static_cast<size_t>(part)]; }

  /// All but waiting.
  [[nodiscard]] double busy() const;

  [[nodiscard]] double whole() const { return busy() + (*this)[StepPart::waiting]; }
};

/// Measures one step as the host sees it.
class PartClock {
public:
  explicit PartClock(const CollectiveLog& log)
      : log_(log)
      , waited_(log.waited()) {}

  /// What runs until the next call is this part; `waiting` is found by itself.
  void begin(StepPart part);
  /// The part of an instruction that begins now; null: the passes are over.
  void begin(const Instruction* instruction);
  [[nodiscard]] PartTimes end();

private:
  const CollectiveLog& log_;
  PartTimes times_;
  StepPart part_ = StepPart::data;
  Clock::time_point began_ = Clock::now();
  double waited_;
};

/// A rank as the others know it.
struct RankTimes {
  std::string host;
  int64_t stage = 0; ///< of the pipeline
  PartTimes typical; ///< medians of the window's steps
};

struct Straggler {
  int64_t rank = 0;
  StepPart part = StepPart::forward; ///< that makes most of the difference
  double ratio = 1;                  ///< of its busy time to that of the others
  double seconds = 0, others = 0;    ///< of the part
};

/// The slowest rank, if it is busy for at least 1.3 times as long as the ranks of its stage (of
/// all stages, where it is the only one of its own) and steps are 5% longer for it.
[[nodiscard]] std::optional<Straggler> find_straggler(const std::vector<RankTimes>& ranks);

/// What rank 0 keeps of the newest window, for those who look at the run.
struct RankTable {
  int64_t first = 0, last = 0; ///< steps
  std::vector<RankTimes> ranks;
};

/// Written whole, in place of the one before.
void write_rank_table(const std::filesystem::path& folder, const RankTable& table);
/// Nothing where there is none, or it cannot be read.
[[nodiscard]] std::optional<RankTable> read_rank_table(const std::filesystem::path& folder);

class RankComparison {
public:
  static constexpr int64_t kSteps = 50;

  /// `hosts` compute in the calling thread; of other devices only the time of data is compared, as
  /// what their queues do is not seen by the host's clock.
  RankComparison(const Ranks& ranks, int64_t stage, bool hosts_compute);

  /// Notes a step. Every 50 the ranks compare theirs.
  ///
  /// Returns: on every rank, the table of a window that ends here
  /// Ranks:   all
  [[nodiscard]] std::optional<RankTable> add(int64_t step, const PartTimes& times);

  /// What to say of a window, which is nothing if it was said of the one before: "rank 3 on n2 ...".
  [[nodiscard]] std::string sentence(const RankTable& table);

private:
  Ranks ranks_;
  RankTimes own_;
  bool hosts_compute_;
  std::vector<PartTimes> window_;
  int64_t first_ = 0;
  std::optional<int64_t> slow_; // the rank that was named last
};

} // namespace mh
