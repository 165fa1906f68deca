#pragma once
/// A run's event files for TensorBoard, with Megatron's names, so that dashboards made for it fit.

#include "core/records/metrics.hpp"

#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

namespace mh {

/// One file per start, in folder RUN/tensorboard. Its session record makes TensorBoard forget what
/// an earlier start wrote about steps that are run again. That record forgets by number, so the
/// curves over samples, whose numbers are larger than steps, are written again, thinned.
class TensorBoard {
public:
  /// `history` are metrics of earlier starts that stay; `warn` is told once if the disk is full.
  ///
  /// Throws:  mh::Error if the file cannot be made
  TensorBoard(
      const std::filesystem::path& run,
      const Rates& rates,
      int64_t resumed_step,
      const std::string& recipe_text,
      const std::vector<Metric>& history,
      std::function<void(const std::string&)> warn
  );

  void write(const Metric& metric);

private:
  void append(const std::string& bytes);

  Rates rates_;
  std::filesystem::path file_;
  std::ofstream stream_;
  std::function<void(const std::string&)> warn_;
};

/// At most `limit` metrics of however many are added, evenly spread.
class ThinnedMetrics {
public:
  explicit ThinnedMetrics(size_t limit = 2000)
      : limit_(limit) {}

  void add(const Metric& metric);

  [[nodiscard]] const std::vector<Metric>& kept() const { return kept_; }

private:
  size_t limit_, every_ = 1, skipped_ = 0;
  std::vector<Metric> kept_;
};

} // namespace mh
