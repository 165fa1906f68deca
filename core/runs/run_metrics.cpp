#include "core/runs/run_metrics.hpp"

#include "megahost/error.hpp"

#include <sys/stat.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>
#include <utility>

namespace mh {

namespace {

constexpr double kNone = std::numeric_limits<double>::quiet_NaN();

double loss_of(const std::vector<LossValue>& losses, const std::string& name) {
  for (const auto& loss : losses) {
    if (loss.name == name) {
      return loss.value;
    }
  }
  return kNone;
}

Measure loss_measure(const std::string& name, const std::string& loss) {
  return {
      name,
      loss,
      [loss](const RunMetrics& run, size_t i) { return loss_of(run.steps[i].losses, loss); },
      loss};
}

} // namespace

int64_t RunMetrics::tokens_of(size_t i) const {
  const auto& record = steps[i];
  if (record.step == 1) {
    return record.tokens;
  }
  const size_t later = i > 0 ? i : 1; // the first record of a run that lacks earlier ones
  return later < steps.size() ? steps[later].tokens - steps[later - 1].tokens : 0;
}

double RunMetrics::tokens_per_second(size_t i) const {
  return static_cast<double>(tokens_of(i)) / steps[i].seconds;
}

RunMetrics named_run(const std::string& folder) {
  RunMetrics run{.name = folder, .folder = folder, .steps = {}, .evaluations = {}};
  while (run.name.size() > 1 && run.name.ends_with('/')) {
    run.name.pop_back();
  }
  std::error_code ignored;
  const auto file = metrics_file(run.folder);
  const bool begins = std::filesystem::exists(run.folder / "recipe.toml", ignored);
  if (!std::filesystem::is_regular_file(file, ignored) && !begins) {
    throw Error(
        folder + " is no run folder: it holds no metrics.jsonl",
        "give a folder that megahost run named, such as runs/quickstart",
        exit_code::data
    );
  }
  return run;
}

void read_on(RunMetrics& run) {
  const auto path = metrics_file(run.folder);

  struct stat found {};

  if (stat(path.c_str(), &found) != 0) {
    return;
  }
  if (found.st_ino != run.file || static_cast<uint64_t>(found.st_size) < run.read) {
    run.file = found.st_ino;
    run.read = 0;
    run.steps.clear();
    run.evaluations.clear();
  }
  std::ifstream stream(path);
  stream.seekg(static_cast<std::streamoff>(run.read));
  for (std::string line; std::getline(stream, line);) {
    const auto metric = parse_metric(line);
    if (metric || !stream.eof()) { // else it is being written
      run.read += line.size() + (stream.eof() ? 0 : 1);
    }
    if (!metric) {
      continue;
    }
    if (const auto* step = std::get_if<StepRecord>(&*metric)) {
      run.steps.push_back(*step);
    } else {
      run.evaluations.push_back(std::get<EvalRecord>(*metric));
    }
  }
}

RunMetrics read_run_so_far(const std::string& folder) {
  RunMetrics run = named_run(folder);
  read_on(run);
  return run;
}

RunMetrics read_run(const std::string& folder) {
  RunMetrics run = read_run_so_far(folder);
  if (run.steps.empty()) {
    throw Error(
        metrics_file(run.folder).string() + " holds no step yet",
        "wait for the run's first step",
        exit_code::data
    );
  }
  return run;
}

std::vector<Measure> measures(const std::vector<RunMetrics>& runs) {
  std::vector<Measure> all;
  for (const auto& run : runs) {
    // Skipped steps have none.
    const auto updated = std::find_if(run.steps.begin(), run.steps.end(), [](const auto& step) {
      return !step.losses.empty();
    });
    if (updated == run.steps.end()) {
      continue;
    }
    for (const auto& loss : updated->losses) {
      const auto known = std::any_of(all.begin(), all.end(), [&](const Measure& measure) {
        return measure.name == loss.name;
      });
      if (all.empty()) {
        all.push_back(loss_measure("loss", loss.name));
      }
      if (!known) {
        all.push_back(loss_measure(loss.name, loss.name));
      }
    }
  }
  const auto add = [&](const char* name, const char* title, auto value) {
    all.push_back({name, title, value});
  };
  add("lr", "learning rate", [](const RunMetrics& run, size_t i) { return run.steps[i].lr; });
  add("gradient_norm", "gradient norm", [](const RunMetrics& run, size_t i) {
    return run.steps[i].gradient_norm;
  });
  add("tokens_per_second", "tokens/s", [](const RunMetrics& run, size_t i) {
    return run.tokens_per_second(i);
  });
  add("seconds", "seconds per step", [](const RunMetrics& run, size_t i) {
    return run.steps[i].seconds;
  });
  add("memory", "peak memory in GB", [](const RunMetrics& run, size_t i) {
    const auto bytes = static_cast<double>(run.steps[i].memory);
    return bytes > 0 ? bytes / 1e9 : kNone;
  });
  return all;
}

Series series_of(const Measure& measure, const RunMetrics& run) {
  Series series{.name = run.name, .x = {}, .y = {}};
  for (size_t i = 0; i < run.steps.size(); ++i) {
    series.x.push_back(static_cast<double>(run.steps[i].step));
    series.y.push_back(measure.value(run, i));
  }
  return series;
}

Series validation_of(const Measure& measure, const RunMetrics& run) {
  Series series{.name = run.name + " validation", .x = {}, .y = {}, .marks = true};
  for (const auto& record : run.evaluations) {
    series.x.push_back(static_cast<double>(record.step));
    series.y.push_back(loss_of(record.losses, measure.loss));
  }
  return series;
}

Series smoothed(Series series, int64_t window) {
  const auto size = static_cast<int64_t>(series.size());
  std::vector<double> sums{0}, counts{0}, means;
  for (const double value : series.y) {
    const bool finite = std::isfinite(value);
    sums.push_back(sums.back() + (finite ? value : 0));
    counts.push_back(counts.back() + (finite ? 1 : 0));
  }
  for (int64_t i = 0; i < size; ++i) {
    const auto begin = static_cast<size_t>(std::max<int64_t>(0, i - (window - 1) / 2));
    const auto end = static_cast<size_t>(std::min(size, i + window / 2 + 1));
    means.push_back((sums[end] - sums[begin]) / (counts[end] - counts[begin]));
  }
  series.y = std::move(means);
  return series;
}

} // namespace mh
