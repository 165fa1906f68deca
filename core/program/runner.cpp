#include "core/program/runner.hpp"

#include "core/program/program_step.hpp"
#include "core/session/session.hpp"
#include "megahost/error.hpp"
#include "megahost/program_device.hpp"

#include <chrono>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace mh::program {

namespace {

/// A feature of a recipe that programs do not support.
struct Unsupported {
  bool asked;
  std::string why, hint;
};

} // namespace

std::unique_ptr<Device> device_of_ranks(const Recipe& recipe, Host& host) {
  if (!host.require(Kind::device, recipe.device.use).planned.in_host_memory()) {
    return nullptr; // it has operators
  }
  auto device = host.make<Device>(recipe.device, {.local_rank = 0});
  const ProgramDevice* programs = device->as_program_device();
  if (programs == nullptr) {
    return nullptr;
  }
  const int64_t ranks = recipe.parallel.ranks();
  if (programs->count() < ranks) {
    throw Error(
        "this layout needs " + std::to_string(ranks) + " devices, and device \"" +
            recipe.device.use + "\" has " + std::to_string(programs->count()),
        "lower the degrees in `parallel`, or give it more by device.options"
    );
  }
  return device;
}

void compile_steps(
    const Recipe& recipe,
    Host& host,
    const StepProgramOptions& options,
    const std::function<void(int64_t microbatches, double seconds)>& compiled
) {
  const auto device = host.make<Device>(recipe.device, {.local_rank = 0});
  const ProgramDevice* programs = device->as_program_device();
  if (programs == nullptr) {
    throw Error(
        "device \"" + recipe.device.use + "\" compiles no programs",
        "set device.use to one that does (docs/xla.md)"
    );
  }
  const int64_t copies = mesh_shape(recipe, recipe.parallel.ranks()).dp;
  std::set<std::pair<std::string, std::vector<int64_t>>> compiled_before;
  for (const int64_t samples : batch_sizes(recipe.batch)) {
    StepProgramOptions of_batch = options;
    of_batch.narrow = programs->narrow();
    of_batch.scan = asks_for_scan(recipe);
    of_batch.microbatches = samples / (recipe.batch.micro * copies);
    const StepProgram step = step_program(recipe, host, of_batch);
    const auto begin = std::chrono::steady_clock::now();
    for (const StageProgram& stage : step.stages) {
      for (const Module& module : stage.modules) {
        if (compiled_before.emplace(module.text, stage.ranks).second) { // other batches may have it
          (void)programs->compile(module.text, stage.ranks);
        }
      }
    }
    const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - begin;
    compiled(*of_batch.microbatches, taken.count());
  }
}

Recipe one_rank(Recipe recipe) {
  auto& parallel = recipe.parallel;
  parallel.tensor = parallel.pipeline = parallel.context = 1;
  parallel.expert = parallel.expert_tensor = parallel.virtual_stages = 1;
  parallel.data = int64_t{1};
  parallel.sequence = false;
  parallel.pipeline_layout = Recipe::Parallel().pipeline_layout;
  parallel.zero = 0;
  return recipe;
}

std::unique_ptr<DeviceStep>
device_step(const Recipe& recipe, Session& session, Weights& weights, Host& host) {
  const ProgramDevice* device = session.device->as_program_device();
  if (device == nullptr) {
    return nullptr;
  }
  const Unsupported all[] = {
      {recipe.precision != "fp32" && recipe.precision != "bf16",
       "precision " + recipe.precision + " is in no program yet",
       "set precision to \"bf16\" or \"fp32\""},
      {session.mesh.world() > 1,
       "one process drives all its devices, and this run has " +
           std::to_string(session.mesh.world()) + " processes",
       "start it without --nproc: the degrees in `parallel` are those of its devices"},
      {recipe.guards.spike != "off",
       "guards.spike needs a step's loss before its update, and the device has both done",
       "set guards.spike to \"off\""},
      {recipe.log.num_zeros,
       "log.num_zeros counts among gradients that no program hands out",
       "set log.num_zeros to false"},
  };
  for (const Unsupported& one : all) {
    if (one.asked) {
      throw Error(
          "device \"" + recipe.device.use + "\" runs steps as programs: " + one.why, one.hint
      );
    }
  }
  return program_step(recipe, session, weights, host, *device);
}

} // namespace mh::program
