#pragma once
/// What a run tells: lines on the screen and in log.txt, every step in metrics.jsonl.

#include "core/train/output.hpp"
#include "core/train/step.hpp"

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace mh {

/// One step of training.
struct StepRecord {
  int64_t step = 0;    ///< completed updates, this one included
  int64_t samples = 0; ///< consumed since the run began
  std::vector<LossValue> losses;
  double lr = 0;      ///< of this update
  double next_lr = 0; ///< of the next one, which Megatron's line shows
  double gradient_norm = 0;
  double seconds = 0;
};

/// One evaluation.
struct EvalRecord {
  int64_t step = 0;
  std::vector<LossValue> losses;
};

/// What turns a step's duration into rates.
struct Rates {
  int64_t iterations = 0; ///< of the whole run
  int64_t global_batch = 0;
  int64_t seq = 0;
  double flops_per_token = 0;
  double peak_flops = 0; ///< of one device; 0 if unknown
  int64_t ranks = 1;
};

/// exp(loss), with Megatron's bound against overflow.
[[nodiscard]] double perplexity(double loss);

/// The mean of some steps in each format. `steps` is not empty.
[[nodiscard]] std::string step_line(const std::vector<StepRecord>& steps, const Rates& rates);
[[nodiscard]] std::string megatron_line(const std::vector<StepRecord>& steps, const Rates& rates);
[[nodiscard]] std::string json_line(const std::vector<StepRecord>& steps, const Rates& rates);

class RunLog {
public:
  /// Opens log.txt and metrics.jsonl in `folder` for appending; of the metrics only those up to
  /// `resumed_step` stay. An empty folder's path writes no files.
  RunLog(
      Output& output,
      std::filesystem::path folder,
      std::string format,
      int64_t interval,
      const Rates& rates,
      int64_t resumed_step
  );

  void line(const std::string& text);
  /// Keeps the record, draws the bar, and prints a line at the end of each interval.
  void step(const StepRecord& record);
  void evaluation(const EvalRecord& record);

  /// The first loss of each step and of each evaluation, those before a resumption included.
  [[nodiscard]] const LossCurves& curves() const { return curves_; }

private:
  void restore(int64_t resumed_step);
  void metric(const std::string& json);
  void show_progress(const StepRecord& record);

  Output& output_;
  std::filesystem::path folder_;
  std::string format_;
  int64_t interval_;
  Rates rates_;
  std::ofstream text_, metrics_;
  bool metrics_failed_ = false;
  std::vector<StepRecord> pending_; // steps that no line has shown
  LossCurves curves_;
  double step_seconds_ = 0; // smoothed, for the time that is left
};

} // namespace mh
