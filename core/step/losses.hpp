#pragma once
/// The named losses of a step: their counts, known before it, and their means, known after it.

#include "megahost/context.hpp"
#include "megahost/mesh.hpp"

#include <ATen/core/Tensor.h>

#include <map>
#include <span>
#include <string>
#include <vector>

namespace mh {

/// The mean of one named loss over a step (or an evaluation), over all ranks.
struct LossValue {
  std::string name;
  double value = 0;
  double count = 0; ///< number of items that it is the mean of
  bool main = true; ///< over items of the data; else an auxiliary loss or a metric of microbatches
};

/// A metric that is a vector, summed over a step and all ranks.
struct MetricValue {
  std::string name;
  std::vector<double> values;
};

/// The numbers that the host reads of a step.
struct StepNumbers {
  std::vector<LossValue> losses;
  std::vector<MetricValue> metrics;
  double more = 0; ///< the scalar that was read with them
};

/// A number that decides how the step goes on; 1 in a plan, which has no numbers.
[[nodiscard]] double number_of(const at::Tensor& scalar);

/// The number of items of each loss over all microbatches and ranks, known before the step from
/// host data; every item counts in a plan.
///
/// Ranks:  collective over dp and cp, once per array that a loss is counted over
class LossCounts {
public:
  LossCounts(const Mesh& mesh, std::span<const Batch> microbatches)
      : mesh_(mesh)
      , microbatches_(microbatches) {}

  /// Throws:  mh::Error if the batch has no array `over`
  [[nodiscard]] double of(const std::string& over);

private:
  const Mesh& mesh_;
  std::span<const Batch> microbatches_;
  std::map<std::string, double> counts_;
};

/// Adds up each named loss over microbatches, on the device.
class LossSums {
public:
  void add(const std::vector<Loss>& losses, LossCounts& counts);

  /// Sums the vectors over the ranks that share the tokens; where they are not wanted, forgets
  /// them.
  ///
  /// Ranks:  collective over dp and cp
  void sum_metrics(const Mesh& mesh, bool wanted);

  /// Sums the means over the ranks that share the tokens.
  ///
  /// Ranks:  collective over dp and cp
  void sum_losses(const Mesh& mesh);

  /// After both: the numbers of all stages, those over items of the data first, and that of the
  /// scalar `more`, if it is defined. The host waits once for the device, whatever their number.
  ///
  /// Ranks:  all of the run
  [[nodiscard]] StepNumbers read(const Mesh& mesh, const at::Tensor& more = {}) const;

  /// The mean of a loss that this stage adds.
  struct Mean {
    std::string name;
    std::string over; ///< the array that it is counted over; "": microbatches
    at::Tensor value;
  };

  /// This rank's shares of the losses, before they were summed, on the device.
  [[nodiscard]] std::vector<at::Tensor> own() const;

  /// The means of all losses, on the device: nothing waits.
  [[nodiscard]] std::vector<Mean> means() const;

private:
  struct Sum {
    std::string name;
    std::string over;
    at::Tensor mean; // this rank's share of it; of a vector the sum
    double count;
    bool main;
    at::Tensor own{}; // this rank's share, once `mean` is that of all
  };

  std::vector<Sum> sums_;    // scalars
  std::vector<Sum> vectors_; // metrics
};

/// Throws:  mh::Error if a pass through the whole model has added no loss
void require_losses(const StepContext& context);

/// The tensor that the backward pass starts from; undefined if there are no losses.
[[nodiscard]] at::Tensor total_loss(const StepContext& context);

} // namespace mh
