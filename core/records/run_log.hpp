#pragma once
/// The output of a run: lines on the screen and in log.txt, every step in metrics.jsonl and in
/// TensorBoard's event files.

#include "core/draw/output.hpp"
#include "core/records/step_lines.hpp"
#include "core/records/tensorboard.hpp"
#include "megahost/recipe.hpp"

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

namespace mh {

/// The steps of the start before it that a start has lost.
struct LostSteps {
  int64_t steps = 0; ///< behind the checkpoint from which it goes on
  double seconds = 0;
  double alive = 0; ///< time of the newest metric; 0: there is none
};

class RunLog {
public:
  /// Opens log.txt and metrics.jsonl in `folder` for appending, and a new event file; of the
  /// metrics only those up to `resumed_step` stay. An empty folder's path writes no files.
  RunLog(
      Output& output,
      std::filesystem::path folder,
      const Recipe::Log& options,
      const Rates& rates,
      int64_t resumed_step,
      const std::string& recipe_text = ""
  );

  void line(const std::string& text);
  /// Keeps the record, draws the bar, and prints a line at the end of each interval.
  void step(const StepRecord& record);
  void evaluation(const EvalRecord& record);

  /// The first loss of each step and of each evaluation, those before a resumption included.
  [[nodiscard]] const LossCurves& curves() const { return curves_; }

  /// The metrics that were dropped when it was opened.
  [[nodiscard]] const LostSteps& lost() const { return lost_; }

private:
  std::vector<Metric> restore(int64_t resumed_step);
  void remember(const Metric& metric);
  void write(const Metric& metric);
  void keep_line(const std::string& text);
  void show_steps();

  Output& output_;
  std::filesystem::path folder_;
  std::string format_;
  int64_t interval_;
  Rates rates_;
  std::ofstream text_, metrics_;
  bool metrics_failed_ = false;
  bool warned_of_peak_ = false;
  std::unique_ptr<TensorBoard> tensorboard_;
  std::vector<StepRecord> pending_; // steps that no line has shown
  RobustZ loss_scores_, norm_scores_;
  Outlook outlook_;
  LossCurves curves_;
  LostSteps lost_;
  double step_seconds_ = 0; // smoothed, for the time that is left
};

} // namespace mh
