// megahost program: the training step as modules of StableHLO.

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

void write_module(const Path& file, const program::Module& module) {
  replace_file(file, module.text);
  std::printf(
      "%s: %s operators, %s of text, %s%s\n",
      file.c_str(),
      grouped(static_cast<int64_t>(module.operators)).c_str(),
      bytes_text(static_cast<int64_t>(module.text.size())).c_str(),
      module.per_microbatch ? "for each microbatch" : "once a step",
      module.loops.empty() ? "" : (", loops of " + module.loops + " operators").c_str()
  );
}

} // namespace

int command_program(const Invocation& invocation, Host& host) {
  const Path folder = output_folder(invocation);
  const Read read = read_resolved(invocation, host, invocation.arguments.front());
  const Recipe& recipe = read.resolved.recipe;
  const program::StepProgramOptions options{
      .dtype = asked_type(invocation),
      .narrow = invocation.has("--narrow"),
      .scan = invocation.has("--scan")};
  const program::StepProgram step = program::step_program(recipe, host, options);
  make_directories(folder);
  size_t tensors = 0, carried = 0;
  for (size_t stage = 0; stage < step.stages.size(); ++stage) {
    const program::StageProgram& one = step.stages[stage];
    tensors += one.tensors.size();
    carried += one.carried.size();
    for (const program::Module& module : one.modules) {
      write_module(folder / step.file_of(stage, module), module);
    }
  }
  replace_file(folder / "step.json", program::ports_json(step));
  std::printf(
      "%s: %zu tensors of a checkpoint, %zu others from step to step, %zu numbers of a step\n",
      (folder / "step.json").c_str(),
      tensors,
      carried,
      step.numbers().size()
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
