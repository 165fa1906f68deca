#include "core/base/number_text.hpp"
#include "core/base/seconds.hpp"
#include "core/base/text.hpp"
#include "core/bench/gpu.hpp"
#include "core/commands/commands.hpp"
#include "core/install/program.hpp"
#include "core/storage/file_system.hpp"
#include "megahost/error.hpp"

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <fstream>

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

bool is_asked(const GpuStep& step, const Invocation& invocation) {
  const auto names = invocation.all("--only");
  return names.empty() || std::any_of(names.begin(), names.end(), [&](const std::string& name) {
           return step.name.starts_with(name);
         });
}

/// The last error that a log tells of.
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

GpuVerdict verdict_of(const GpuStep& step, int status, const fs::path& log, bool ended) {
  if (ended) {
    return {false, formatted("ended after %.0f s", step.limit)};
  }
  if (status != 0) {
    const std::string error = error_in(log);
    return {false, error.empty() ? "exit status " + std::to_string(status) : error};
  }
  try {
    return step.judge ? step.judge() : GpuVerdict();
  } catch (const std::exception& error) {
    return {false, std::string("its results cannot be read: ") + error.what()};
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
  return {
      .name = step.name,
      .what = step.what,
      .command = "megahost " + join(step.words, " "),
      .seconds = seconds,
      .status = status,
      .verdict = verdict_of(step, status, log, status == 128 + SIGKILL && seconds >= limit)};
}

} // namespace

int command_bench_gpu(const Invocation& invocation, Host&) {
  const GpuOptions options = gpu_options(invocation);
  fs::create_directories(options.folder);
  const auto start = Clock::now();
  std::vector<GpuResult> results;
  bool good = true;
  for (const GpuStep& step : gpu_steps(options)) {
    if (!is_asked(step, invocation)) {
      continue;
    }
    const double left = kLongest - seconds_since(start);
    if (left <= 0) {
      std::printf("left out after %.0f minutes: %s\n", kLongest / 60, step.what.c_str());
      good = false;
      continue;
    }
    results.push_back(run_step(step, options.folder, std::min(step.limit, left)));
    good = good && results.back().verdict.good;
    std::printf("%s\n", gpu_line(results.back()).c_str());
    std::fflush(stdout);
    // After each step: a machine may be taken away at any time.
    replace_file((options.folder / "report.json").string(), gpu_json(results));
    replace_file((options.folder / "report.html").string(), gpu_page(results, options.folder));
  }
  if (results.empty()) {
    throw Error(
        "no step of megahost bench gpu begins with " + join(invocation.all("--only"), " or "),
        "leave --only out to see their names"
    );
  }
  std::printf("%s holds all results\n", (options.folder / "report.html").c_str());
  return good ? 0 : 1;
}

} // namespace mh
