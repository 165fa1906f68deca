#pragma once
/// What a run measures: the records behind its lines, its metrics.jsonl and its event files.

#include "core/step/step.hpp"

#include <cstdint>
#include <optional>
#include <vector>

namespace mh {

/// One step of training.
struct StepRecord {
  int64_t step = 0;    ///< completed updates, this one included
  int64_t samples = 0; ///< consumed since the run began
  int64_t tokens = 0;  ///< likewise
  int64_t batch = 0;   ///< samples of this step; 0 if all steps have as many
  std::vector<LossValue> losses;
  std::vector<MetricValue> metrics{};
  double lr = 0;      ///< learning rate of this update
  double next_lr = 0; ///< learning rate of the next one, which Megatron's line shows
  double gradient_norm = 0;
  double seconds = 0;
  double data_seconds = 0; ///< those of `seconds` that went into waiting for samples
  int64_t memory = 0;      ///< peak bytes so far, on a CPU of the process; 0 if unknown
  int64_t tensors = 0;     ///< peak bytes of tensors since the steps began; 0 if unknown
  int64_t ranks = 0;       ///< that did it; 0 if unknown
  bool skipped = false;    ///< no update: losses are empty, the norm may be no number
  bool nan = false;        ///< skipped for NaN or Inf
  double time = 0;         ///< Unix time at which it ended; 0 if unknown
  std::optional<double> loss_scale{}, num_zeros{}, params_norm{};
};

/// One evaluation.
struct EvalRecord {
  int64_t step = 0;
  int64_t samples = 0; ///< consumed in training
  std::vector<LossValue> losses;
  double time = 0; ///< as of a step
};

/// What turns a step's duration into rates.
struct Rates {
  int64_t iterations = 0; ///< iterations of the whole run
  int64_t global_batch = 0;
  int64_t tokens_per_sample = 0;
  double flops_per_sample = 0;
  double peak_flops = 0; ///< peak FLOP/s of one device; 0 if unknown
  int64_t ranks = 1;

  /// Samples of a step.
  [[nodiscard]] int64_t batch(const StepRecord& record) const {
    return record.batch > 0 ? record.batch : global_batch;
  }

  [[nodiscard]] double tokens_per_second(double seconds, double samples) const {
    return samples * static_cast<double>(tokens_per_sample) / seconds;
  }

  /// FLOP/s of each rank.
  [[nodiscard]] double flops(double seconds, double samples) const {
    return samples * flops_per_sample / seconds / static_cast<double>(ranks);
  }
};

/// exp(loss), with Megatron's bound against overflow.
[[nodiscard]] double perplexity(double loss);

} // namespace mh
