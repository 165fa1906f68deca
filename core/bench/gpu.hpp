#pragma once
/// The first half hour on a GPU: commands of megahost in an order that finds what is wrong before
/// it measures how fast that is, and what their results say. `megahost bench gpu` runs them.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

namespace mh {

/// How a step compares with what is aimed at.
enum class GpuMark : uint8_t {
  ok,
  below, ///< its numbers are right, but a rate is below its goal
  wrong
};

/// The verdict on a command that succeeded.
struct GpuVerdict {
  GpuMark mark = GpuMark::ok;
  std::string found; ///< "largest difference of a loss 2e-7, in step 31"
};

/// One command.
struct GpuStep {
  std::string name; ///< names its files in the folder: NAME.out, NAME.log, and what its words name
  std::string what; ///< for people
  std::vector<std::string> words;      ///< behind `megahost`
  double limit = 120;                  ///< seconds after which it is ended
  std::function<GpuVerdict()> judge{}; ///< reads its files and those before it
};

struct GpuOptions {
  std::filesystem::path folder;
  std::string device = "cuda";
  std::string machine = "h100";    ///< row of hardware.toml that measurements are compared with
  std::vector<std::string> sets{}; ///< "KEY=VALUE", of the runs whose losses are compared
};

/// All steps: correctness, rates of kernels, training steps next to their plans, a profile.
[[nodiscard]] std::vector<GpuStep> gpu_steps(const GpuOptions& options);

/// Writes the recipes that the steps read into the folder.
void write_gpu_recipes(const GpuOptions& options);

/// The result of a step.
struct GpuResult {
  std::string name, what, command;
  double seconds = 0;
  int status = 0; ///< exit status of the command
  GpuVerdict verdict;
};

[[nodiscard]] std::string gpu_line(const GpuResult& result);
[[nodiscard]] std::string gpu_json(const std::vector<GpuResult>& results);
/// One page: what is wrong first, then all results, then the tables that were measured.
[[nodiscard]] std::string
gpu_page(const std::vector<GpuResult>& results, const std::filesystem::path& folder);

} // namespace mh
