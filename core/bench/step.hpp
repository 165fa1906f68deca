#pragma once
/// The benchmarks that take a recipe: whole training steps, and the data alone.

#include "core/bench/bench.hpp"
#include "core/session/session.hpp"
#include "core/step/batches.hpp"
#include "core/step/weights.hpp"
#include "megahost/recipe.hpp"

#include <nlohmann/json.hpp>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace mh {

struct StepBench {
  std::string recipe, precision;
  std::vector<double> seconds{};
  int64_t tokens = 0;                            ///< tokens of one step
  double product_flops = 0, attention_flops = 0; ///< FLOPs of training one token
  double peak_flops = 0;                         ///< a second, of GEMMs; 0: not known
  int64_t peak_bytes = 0, state_bytes = 0;       ///< resident; weights, gradients, optimizer
  int64_t base_bytes = 0;                       ///< resident before the first step, without weights
  int64_t grown_bytes = 0, system_requests = 0; ///< in the measured steps

  [[nodiscard]] double step() const;  ///< median, in seconds
  [[nodiscard]] double flops() const; ///< FLOPs of the model in a second
};

/// Trains steps of a recipe, one at a time; nothing is written.
class StepByStep {
public:
  /// Throws:  mh::Error as a run of the recipe would
  StepByStep(const Recipe& recipe, Host& host);
  ~StepByStep();

  /// Trains one step; seconds that it took.
  ///
  /// Throws:  mh::Error (exit code 6) if it gave numbers that are not finite
  double train();

  [[nodiscard]] Session& session() const { return *session_; }

  [[nodiscard]] const Weights& weights() const { return *weights_; }

  /// Resident before the first step, without weights, gradients and optimizer.
  [[nodiscard]] int64_t base_bytes() const { return base_bytes_; }

private:
  std::unique_ptr<Session> session_;
  std::unique_ptr<Weights> weights_;
  std::unique_ptr<Prefetcher> data_;
  int64_t done_ = 0, base_bytes_ = 0;
};

/// Trains some steps and then `steps` measured ones; nothing is written.
///
/// Throws:  mh::Error as a run of the recipe would
[[nodiscard]] StepBench bench_step(const Recipe& recipe, Host& host, int64_t steps);

[[nodiscard]] std::string step_text(const StepBench& bench);
[[nodiscard]] std::string step_json(const StepBench& bench);

/// How fast the recipe's corpus gives samples.
[[nodiscard]] BenchTable bench_data(const Recipe& recipe, Host& host);

} // namespace mh
