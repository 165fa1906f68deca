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
#include <set>
#include <span>
#include <string>
#include <vector>

namespace mh::program {

/// A result of another pipeline stage.
struct StageResult {
  int64_t stage = 0;
  std::string name{};

  friend auto operator<=>(const StageResult&, const StageResult&) = default;
};

/// An argument or a result of a module.
struct Port {
  std::string name;
  at::ScalarType dtype = at::kFloat;
  std::vector<int64_t> sizes{};
  /// The result that an argument is a copy of, of the replica in the same place there.
  std::optional<StageResult> from = std::nullopt;
};

/// A part of the step. A result takes over the memory of the argument that has its name.
struct Module {
  std::string name;            ///< "open", "pass", "close", ...
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

/// A module's turn in a step.
struct ModuleTurn {
  size_t module = 0;
  int64_t microbatch = 0; ///< 0 for modules that run once
};

/// The part of a step that the ranks of one pipeline stage run. Where a module has run, the
/// arguments of other stages' that are copies of its results can be made; one runs as soon as it has
/// its arguments, those of its stage in the order of `turns`.
struct StageProgram {
  std::vector<int64_t> ranks{}; ///< the stage's, whose places here are the replicas' numbers
  std::vector<Module> modules{};
  std::vector<ModuleTurn> turns{}; ///< a step
  std::vector<Port> tensors{};     ///< tensors of a checkpoint, as each rank has them
  std::vector<Port> carried{};     ///< others that go from step to step, all zero before the first
  /// The offsets of each rank's tensors in the global ones: [replica][tensor][dimension].
  std::vector<std::vector<std::vector<int64_t>>> offsets{};

  /// Names of what modules have of one microbatch for other modules.
  [[nodiscard]] MH_API std::set<std::string> of_microbatches() const;

  /// For each turn, the names that no later one reads: of tensors that do not go from step to step,
  /// and are not among `kept`.
  [[nodiscard]] MH_API std::vector<std::vector<std::string>>
  dropped_after(const std::set<std::string>& kept) const;
};

/// A number that the host reads of a step: the sum of what those stages have of it.
struct StepNumber {
  Port port;
  std::vector<size_t> stages{};
};

/// A step of training as modules that run one after the other, and hand on results by their names:
///
///   open   from the tensors of a checkpoint the parameters that passes compute with, where these
///          are others (rounded, packed, gathered over ranks): "parameter.NAME"
///   pass   forward and backward pass of one microbatch: its gradients are added to "gradient.NAME",
///          its shares of the losses to "loss_sum.NAME"
///   close  sums over ranks, gradient norm, clipping and update
///
/// Each stage of a pipeline has modules of its own, which hand results to other stages. In the place
/// of `pass` there are "forward" and "backward" (of virtual stages "forward.1" and so on; where the
/// schedule puts weight gradients off, "backward_input" and "backward_weight"), with saved
/// activations between them; in the place of `close`
///
///   reduce  sums of gradients over ranks
///   norm    the stage's part of the norm
///   agree   whether its losses and the whole norm are finite numbers
///   close   clipping and update
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
  std::vector<StageProgram> stages{}; ///< one, or those of a pipeline
  std::vector<std::string> counted{}; ///< arrays that losses are counted over
  int64_t microbatches = 1;           ///< per step and rank
  std::vector<RankData> data{};       ///< the arrays of each rank of the recipe
  int64_t data_ranks = 1; ///< microbatch m of data rank d is m * data_ranks + d of the step
  std::vector<std::string> main_losses{}; ///< names of losses over items of the data

  [[nodiscard]] int64_t ranks() const { return static_cast<int64_t>(data.size()); }

  /// The numbers that the host reads of a step: losses, those over items of the data first, and the
  /// gradient norm.
  [[nodiscard]] MH_API std::vector<StepNumber> numbers() const;

  /// The file of a module: "pass.mlir", of a pipeline "stage0.forward.mlir".
  [[nodiscard]] MH_API std::string file_of(size_t stage, const Module& module) const;
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
/// Throws:  mh::Error where the recipe calls what no program can hold, or has ranks of a stage that do
///          not all do the same to tensors of the same shapes
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
