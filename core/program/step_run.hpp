#pragma once
/// One step on the devices: every stage's modules in their turns, and what they hand to one another.

#include "core/program/step_program.hpp"
#include "core/step/step.hpp"
#include "megahost/context.hpp"
#include "megahost/export.hpp"
#include "megahost/program_device.hpp"

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <vector>

namespace mh::program {

/// Tensors in a device's memory by the names that modules call them.
using BuffersByName = std::map<std::string, std::unique_ptr<ProgramDevice::Buffer>>;

/// A stage of a step, compiled.
struct CompiledStage {
  /// The argument of another stage that is a copy of a result.
  struct Taker {
    size_t stage = 0;
    std::string argument{};
  };

  std::vector<ProgramDevice::Program*> programs{};    ///< executables of its modules
  std::vector<std::vector<std::string>> dropped{};    ///< names that no turn after each reads
  std::set<std::string> of_microbatches{};            ///< names that each microbatch has
  std::map<std::string, std::vector<Taker>> takers{}; ///< by the names of results
};

/// A step of so many microbatches, compiled.
struct MH_API CompiledStep {
  StepProgram step;
  std::vector<CompiledStage> stages{};

  /// `step` without programs.
  explicit CompiledStep(StepProgram step);

  /// Bytes of a device's memory that the step takes at its peak.
  [[nodiscard]] int64_t memory() const;
};

/// A step's data on the devices, which modules do not change: [rank][microbatch].
using StepData = std::vector<std::vector<BuffersByName>>;

/// Uploads a step's data and numbers, as far as modules read them. `microbatches` and `decay`: see
/// `microbatch_inputs` and `step_numbers`.
[[nodiscard]] MH_API StepData step_data(
    const ProgramDevice& device,
    const StepProgram& step,
    std::span<const Batch> microbatches,
    const StepOptions& options,
    double decay
);

/// Tells the devices to run a step, and does not wait for it.
class MH_API StepRun {
public:
  /// `ret_held`: each rank's tensors that go from step to step; numbers of the step are among them
  /// afterwards. All outlive it.
  StepRun(
      const ProgramDevice& device,
      const CompiledStep& compiled,
      const StepData& data,
      std::vector<BuffersByName>& ret_held
  );

  /// Throws:  mh::Error with what a device says
  void run();

private:
  using Arguments = std::vector<std::vector<const ProgramDevice::Buffer*>>;

  /// Runs what a stage can run before it needs results of others; says whether there was anything.
  bool advance(size_t stage);
  [[nodiscard]] bool is_ready(size_t stage, const ModuleTurn& turn) const;
  void run_turn(size_t stage, size_t number);
  [[nodiscard]] Arguments arguments_of(size_t stage, const ModuleTurn& turn) const;
  void hand_on(size_t stage, const ModuleTurn& turn, const std::string& result);
  [[nodiscard]] const ProgramDevice::Buffer*
  find(int64_t rank, int64_t microbatch, const std::string& name) const;
  /// The tensors among which a name of a stage is.
  [[nodiscard]] BuffersByName&
  place_of(size_t stage, int64_t rank, int64_t microbatch, const std::string& name);

  const ProgramDevice& device_;
  const CompiledStep& compiled_;
  const StepData& data_;
  std::vector<BuffersByName>& held_;
  StepData of_microbatches_; // what modules have made of each
  std::vector<size_t> next_; // each stage's turn
};

} // namespace mh::program
