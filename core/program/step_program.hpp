#pragma once
/// A recipe's training step as programs: what a device runs that LibTorch has no kernels for.

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

/// An argument or a result of a module.
struct Port {
  std::string name;
  at::ScalarType dtype = at::kFloat;
  std::vector<int64_t> sizes{};
};

/// A part of the step. A result takes over the memory of the argument that has its name.
struct Module {
  std::string name;            ///< "open", "pass" or "close"
  bool per_microbatch = false; ///< runs once for each of them, the others once a step
  std::vector<Port> inputs{}, outputs{};
  std::string text{};   ///< StableHLO
  size_t operators = 0; ///< ATen operators that it is made of, those in loops counted once
  std::string loops{};  ///< "24 x 210": repetitions and operators of each loop (loops.hpp)
};

/// The part of a step's data that one rank takes.
struct RankData {
  int64_t data_rank = 0;
  /// By an array's name, its rows [count] for this rank; arrays that are not here are whole.
  std::map<std::string, at::Tensor> rows{};
};

/// The flag among `carried` that says whether an earlier step was given up.
inline constexpr const char* kFailed = "step.failed";

/// A step of training as modules that run one after the other, and hand on results by their names:
///
///   open   from the tensors of a checkpoint the parameters that passes compute with, where these
///          are others (rounded, packed, gathered over ranks): "parameter.NAME"
///   pass   forward and backward pass of one microbatch: its gradients are added to "gradient.NAME",
///          its shares of the losses to "loss_sum.NAME"
///   close  sums over ranks, gradient norm, clipping and update
///
/// However many microbatches a step has, their text is no longer.
///
/// Inputs are the tensors of a checkpoint under their names, the arrays of a microbatch as
/// "microbatch.tokens", and of the update "optimizer.lr", "optimizer.weight_decay" and
/// "optimizer.step", which counts from 1; of dropout, where there is any, the words of its key,
/// "dropout.key_low" and "dropout.key_high", and the microbatch's first sample over all ranks,
/// "dropout.sample". An array that a loss is counted over ("loss_mask") is scaled by who fills it so
/// that over the whole step it sums to its number of elements.
///
/// Outputs are the same tensors after the step; as they were where a loss or the norm is no finite
/// number, or `kFailed` was set before: then it is set. "loss.NAME" of each loss, and
/// "gradient_norm", before clipping.
struct StepProgram {
  std::vector<Module> modules{}; ///< in the order in which they run
  std::vector<Port> tensors{};   ///< tensors of a checkpoint, as each rank has them
  std::vector<Port>
      carried{}; ///< other tensors that go from step to step, all zero before the first
  std::vector<std::string> counted{}; ///< arrays that losses are counted over
  int64_t microbatches = 1;           ///< per step and rank
  int64_t ranks = 1; ///< replicas that run it; of several, the input "rank" says which one it is
  /// The offsets of each rank's tensors in the global ones: [rank][tensor][dimension].
  std::vector<std::vector<std::vector<int64_t>>> offsets{};
  std::vector<RankData> data{}; ///< the arrays of each rank
  int64_t data_ranks = 1;       ///< microbatch m of data rank d is m * data_ranks + d of the step
  size_t main_losses = 0;       ///< losses over items of the data, which come first

  /// Losses and gradient norm: the numbers that the host reads of a step.
  [[nodiscard]] MH_API std::vector<Port> numbers() const;
};

struct StepProgramOptions {
  std::optional<at::ScalarType> dtype = std::nullopt; ///< instead of the recipe's precision
  bool narrow = false;                                ///< float32 and int32 in place of 64 bits
  bool scan = false;                                  ///< layers that are alike are loops in passes
  std::optional<int64_t> microbatches = std::nullopt; ///< per step and rank, not a full batch's
};

/// Whether the recipe's device has `scan` among its keys, and it is true.
[[nodiscard]] bool asks_for_scan(const Recipe& recipe);

/// Records the step of all ranks of a recipe. No data are read, and nothing is computed.
///
/// Throws:  mh::Error where the recipe calls what no program can hold, has several pipeline stages, or
///          ranks that do not all do the same to tensors of the same shapes
[[nodiscard]] MH_API StepProgram
step_program(const Recipe& recipe, Host& host, const StepProgramOptions& options = {});

/// The inputs of each of a rank's microbatches, by their names; arrays in `counted` are scaled as the
/// program asks. `microbatches`: of the whole step, as one rank loads them.
[[nodiscard]] MH_API std::vector<std::map<std::string, at::Tensor>> microbatch_inputs(
    std::span<const Batch> microbatches, const StepProgram& program, int64_t rank = 0
);

/// The other inputs of a step, the same on all ranks. `decay`: the weight decay that is in force.
[[nodiscard]] MH_API std::map<std::string, at::Tensor>
step_numbers(const StepOptions& options, double decay);

/// The modules' inputs and outputs, which outputs take over which inputs' memory, and in which order
/// they run, as JSON.
[[nodiscard]] std::string ports_json(const StepProgram& program);

} // namespace mh::program
