#pragma once
/// A recipe's training step as one program: what a device runs that LibTorch has no kernels for.

#include "core/step/step.hpp"
#include "megahost/context.hpp"
#include "megahost/export.hpp"
#include "megahost/host.hpp"
#include "megahost/recipe.hpp"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace mh::program {

/// An argument or a result of a program.
struct Port {
  std::string name;
  at::ScalarType dtype = at::kFloat;
  std::vector<int64_t> sizes{};
};

/// The part of a step's data that one rank takes.
struct RankData {
  int64_t data_rank = 0;
  /// By an array's name, its rows [count] for this rank; arrays that are not here are whole.
  std::map<std::string, at::Tensor> rows{};
};

/// A step of all microbatches: forward and backward passes, gradient norm, clipping, update.
///
/// Inputs are the tensors of a checkpoint under their names, the arrays of each microbatch as
/// "microbatch.0.tokens", and of the update "optimizer.lr", "optimizer.weight_decay" and
/// "optimizer.step", which counts from 1; of dropout, where there is any, the words of its key,
/// "dropout.key_low" and "dropout.key_high", and the step's first sample, "dropout.sample". An array that a loss is counted over ("loss_mask") is
/// scaled by who fills it so that over the whole step it sums to its number of elements.
///
/// Outputs are the same tensors after the step, which take over their inputs' memory; as they were
/// where a loss or the norm is no finite number. Then "loss.NAME" of each loss and "gradient_norm",
/// before clipping.
struct StepProgram {
  std::string module; ///< text of StableHLO
  std::vector<Port> inputs{}, outputs{};
  std::vector<std::string> counted{}; ///< arrays that losses are counted over
  int64_t ranks = 1; ///< replicas that run it; of several, the input "rank" says which one it is
  /// The offsets of each rank's tensors in the global ones: [rank][tensor][dimension].
  std::vector<std::vector<std::vector<int64_t>>> offsets{};
  std::vector<RankData> data{}; ///< the arrays of each rank
  int64_t data_ranks = 1;       ///< microbatch m of data rank d is m * data_ranks + d of the step
  size_t main_losses = 0;       ///< losses over items of the data, which come first
  size_t tensors = 0;   ///< tensors of a checkpoint: the first inputs, and the first outputs
  size_t operators = 0; ///< ATen operators that the module is made of
};

struct StepProgramOptions {
  std::optional<at::ScalarType> dtype = std::nullopt; ///< instead of the recipe's precision
  bool narrow = false;                                ///< float32 and int32 in place of 64 bits
  std::optional<int64_t> microbatches = std::nullopt; ///< per step and rank, not a full batch's
};

/// Records the step of all ranks of a recipe. No data are read, and nothing is computed.
///
/// Throws:  mh::Error where the recipe calls what no program can hold, has several pipeline stages, or
///          ranks that do not all do the same to tensors of the same shapes
[[nodiscard]] MH_API StepProgram
step_program(const Recipe& recipe, Host& host, const StepProgramOptions& options = {});

/// The arrays that a rank takes, by the names of the program's inputs; those in `counted` are scaled
/// as it asks. `microbatches`: of the whole step, as one rank loads them.
[[nodiscard]] MH_API std::map<std::string, at::Tensor>
step_arrays(std::span<const Batch> microbatches, const StepProgram& program, int64_t rank = 0);

/// The numbers of a step by the names of the program's inputs, the same on all ranks. `decay`: the
/// weight decay that is in force.
[[nodiscard]] MH_API std::map<std::string, at::Tensor>
step_numbers(std::span<const Batch> microbatches, const StepOptions& options, double decay);

/// Names, types and shapes of inputs and outputs, and which outputs take over which inputs' memory,
/// as JSON.
[[nodiscard]] std::string ports_json(const StepProgram& program);

} // namespace mh::program
