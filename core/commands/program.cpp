// megahost program: the training step as a module of StableHLO.

#include "core/base/number_text.hpp"
#include "core/base/text.hpp"
#include "core/checkpoint_commands/saved.hpp"
#include "core/commands/commands.hpp"
#include "core/program/runner.hpp"
#include "core/program/step_program.hpp"
#include "core/storage/file_system.hpp"

#include <cstdio>
#include <optional>

namespace mh {

namespace {

std::optional<at::ScalarType> asked_type(const Invocation& invocation) {
  const std::string word = invocation.value("--precision");
  if (word.empty()) {
    return std::nullopt;
  }
  return word == "float64" ? at::kDouble : word == "bf16" ? at::kBFloat16 : at::kFloat;
}

} // namespace

int command_program(const Invocation& invocation, Host& host) {
  const Path folder = output_folder(invocation);
  const Read read = read_resolved(invocation, host, invocation.arguments.front());
  const Recipe& recipe = read.resolved.recipe;
  const program::StepProgramOptions options{
      .dtype = asked_type(invocation), .narrow = invocation.has("--narrow")};
  const program::StepProgram step = program::step_program(recipe, host, options);
  make_directories(folder);
  replace_file(folder / "step.mlir", step.module);
  replace_file(folder / "step.json", program::ports_json(step));
  std::printf(
      "%s: %s operators, %s of text\n%s: %zu tensors of a checkpoint, %zu other inputs, %zu numbers "
      "of the step\n",
      (folder / "step.mlir").c_str(),
      grouped(static_cast<int64_t>(step.operators)).c_str(),
      bytes_text(static_cast<int64_t>(step.module.size())).c_str(),
      (folder / "step.json").c_str(),
      step.tensors,
      step.inputs.size() - step.tensors,
      step.outputs.size() - step.tensors
  );
  if (invocation.has("--compile")) {
    program::compile_steps(recipe, host, options, [](int64_t microbatches, double seconds) {
      std::printf(
          "a step of %ld %s compiled in %.1f s\n",
          microbatches,
          microbatches == 1 ? "microbatch" : "microbatches",
          seconds
      );
    });
  }
  return 0;
}

} // namespace mh
