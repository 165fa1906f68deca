#include "core/base/number_text.hpp"
#include "core/base/seconds.hpp"
#include "core/base/text.hpp"
#include "core/bench/gpu.hpp"
#include "core/bench_commands/commands.hpp"
#include "core/install/program.hpp"
#include "core/storage/file_system.hpp"
#include "megahost/error.hpp"

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <fstream>
#include <optional>

namespace mh {

namespace {

namespace fs = std::filesystem;

constexpr double kLongest = 25 * 60; // seconds; what has not begun by then is left out

GpuOptions gpu_options(const Invocation& invocation) {
  if (!invocation.has("-o")) {
    throw Error("megahost bench gpu needs a folder for its results", "-o DIR names it");
  }
  GpuOptions options{.folder = fs::absolute(invocation.value("-o"))};
  if (fs::exists(options.folder) && !fs::is_empty(options.folder)) {
    throw Error(
        options.folder.string() + " is there and not empty", "name a new folder for the results"
    );
  }
  if (invocation.has("--device")) {
    options.device = invocation.value("--device");
  }
  options.sets = invocation.all("--set");
  if (invocation.has("--on")) {
    options.machine = invocation.value("--on");
  }
  return options;
}

/// The steps whose names begin with one of --only's words.
std::vector<GpuStep> asked(std::vector<GpuStep> steps, const std::vector<std::string>& words) {
  if (words.empty()) {
    return steps;
  }
  for (const std::string& word : words) {
    if (std::none_of(steps.begin(), steps.end(), [&](const GpuStep& step) {
          return step.name.starts_with(word);
        })) {
      std::string names;
      for (const GpuStep& step : steps) {
        names += (names.empty() ? "" : ", ") + step.name;
      }
      throw Error("no step of megahost bench gpu begins with " + word, "they are " + names);
    }
  }
  std::erase_if(steps, [&](const GpuStep& step) {
    return std::none_of(words.begin(), words.end(), [&](const std::string& word) {
      return step.name.starts_with(word);
    });
  });
  return steps;
}

/// The last error in a log.
std::string error_in(const fs::path& log) {
  std::string found;
  std::ifstream stream(log);
  for (std::string line; std::getline(stream, line);) {
    if (line.starts_with("error: ")) {
      found = line;
    }
  }
  return found;
}

/// `limit`: seconds after which it was ended, if it was.
GpuVerdict
verdict_of(const GpuStep& step, int status, const fs::path& log, std::optional<double> limit) {
  if (limit) {
    return {GpuMark::wrong, formatted("ended after %.0f s", *limit)};
  }
  if (status != 0) {
    const std::string error = error_in(log);
    return {GpuMark::wrong, error.empty() ? "exit status " + std::to_string(status) : error};
  }
  try {
    return step.judge ? step.judge() : GpuVerdict();
  } catch (const std::exception& error) {
    return {GpuMark::wrong, std::string("its results cannot be read: ") + error.what()};
  }
}

/// `limit`: seconds that it may take.
GpuResult run_step(const GpuStep& step, const fs::path& folder, double limit) {
  const fs::path log = folder / (step.name + ".log");
  std::vector<std::string> words{fs::canonical("/proc/self/exe").string()};
  words.insert(words.end(), step.words.begin(), step.words.end());
  const auto start = Clock::now();
  const int status =
      run_program(words, {.log = log, .output = folder / (step.name + ".out"), .limit = limit});
  const double seconds = seconds_since(start);
  const bool ended = status == 128 + SIGKILL && seconds >= limit;
  return {
      .name = step.name,
      .what = step.what,
      .command = "megahost " + join(step.words, " "),
      .seconds = seconds,
      .status = status,
      .verdict = verdict_of(step, status, log, ended ? std::optional(limit) : std::nullopt)};
}

} // namespace

int command_bench_gpu(const Invocation& invocation, Host&) {
  const GpuOptions options = gpu_options(invocation);
  const auto steps = asked(gpu_steps(options), invocation.all("--only"));
  make_directories(options.folder);
  write_gpu_recipes(options);
  const auto start = Clock::now();
  std::vector<GpuResult> results;
  bool good = true;
  for (const GpuStep& step : steps) {
    const double left = kLongest - seconds_since(start);
    if (left <= 0) {
      std::printf("left out after %.0f minutes: %s\n", kLongest / 60, step.what.c_str());
      good = false;
      continue;
    }
    results.push_back(run_step(step, options.folder, std::min(step.limit, left)));
    good = good && results.back().verdict.mark != GpuMark::wrong;
    std::printf("%s\n", gpu_line(results.back()).c_str());
    std::fflush(stdout);
    // After each step: a machine may be taken away at any time.
    replace_file((options.folder / "report.json").string(), gpu_json(results));
    replace_file((options.folder / "report.html").string(), gpu_page(results, options.folder));
  }
  std::printf("%s holds all results\n", (options.folder / "report.html").c_str());
  return good ? 0 : 1;
}

} // namespace mh
