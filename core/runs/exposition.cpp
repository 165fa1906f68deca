#include "core/runs/exposition.hpp"

#include "core/base/number_text.hpp"
#include "core/base/seconds.hpp"
#include "core/base/text.hpp"

#include <cmath>
#include <optional>

namespace mh {

namespace {

/// A value of a run, with the label that tells it from others of its metric, where there are some.
struct Reading {
  double value;
  const char* label = nullptr; ///< "loss"
  std::string of{};
};

/// A row of Prometheus's text format. A run that has no reading has no line.
struct MetricFamily {
  const char* name;
  const char* type;
  const char* help;
  std::vector<Reading> (*readings)(const RunStatus& run);
};

template <class T>
std::vector<Reading> reading(const std::optional<T>& value) {
  return value ? std::vector<Reading>{{static_cast<double>(*value)}} : std::vector<Reading>();
}

template <auto Member>
std::vector<Reading> of_last(const RunStatus& run) {
  return run.last() == nullptr ? std::vector<Reading>()
                               : std::vector<Reading>{{static_cast<double>(run.last()->*Member)}};
}

/// A median, which there is once there is a step.
template <auto Member>
std::vector<Reading> median_of(const RunStatus& run) {
  return run.last() == nullptr ? std::vector<Reading>() : std::vector<Reading>{{run.*Member}};
}

std::vector<Reading> of_losses(const std::vector<LossValue>& losses) {
  std::vector<Reading> readings;
  for (const LossValue& loss : losses) {
    readings.push_back({loss.value, "loss", loss.name});
  }
  return readings;
}

using Readings = std::vector<Reading>;

Readings of_ranks(const RunStatus& run, double (*seconds)(const PartTimes& times)) {
  Readings readings;
  const size_t ranks = run.ranks ? run.ranks->ranks.size() : 0;
  for (size_t rank = 0; rank < ranks; ++rank) {
    readings.push_back({seconds(run.ranks->ranks[rank].typical), "rank", std::to_string(rank)});
  }
  return readings;
}

Readings of_time(const RunStatus& run) {
  if (!run.goodput) {
    return {};
  }
  Readings readings{{run.goodput->useful, "cause", "useful"}};
  for (const Goodput::Cause& cause : run.goodput->causes()) {
    readings.push_back({cause.seconds, "cause", cause.key});
  }
  return readings;
}

const MetricFamily kFamilies[] = {
    {"running",
     "gauge",
     "1 while the run goes on, else 0",
     [](const RunStatus& run) { return Readings{{run.goes_on() ? 1.0 : 0.0}}; }},
    {"step", "gauge", "completed optimizer steps", of_last<&StepRecord::step>},
    {"iterations",
     "gauge",
     "optimizer steps of the whole run",
     [](const RunStatus& run) {
       return run.iterations > 0 ? Readings{{static_cast<double>(run.iterations)}} : Readings();
     }},
    {"samples_total", "counter", "sequences trained on", of_last<&StepRecord::samples>},
    {"tokens_total", "counter", "tokens trained on", of_last<&StepRecord::tokens>},
    {"tokens_per_second",
     "gauge",
     "median of the newest 50 steps",
     median_of<&RunStatus::tokens_per_second>},
    {"step_seconds",
     "gauge",
     "duration of a step, median of the newest 50",
     median_of<&RunStatus::step_seconds>},
    {"data_wait_seconds",
     "gauge",
     "part of a step's duration that waits for samples",
     median_of<&RunStatus::data_seconds>},
    {"loss",
     "gauge",
     "training losses of the newest step with an update",
     [](const RunStatus& run) {
       return run.last_update() == nullptr ? Readings() : of_losses(run.last_update()->losses);
     }},
    {"validation_loss",
     "gauge",
     "losses of the newest evaluation",
     [](const RunStatus& run) {
       return run.metrics.evaluations.empty() ? Readings()
                                              : of_losses(run.metrics.evaluations.back().losses);
     }},
    {"learning_rate", "gauge", "learning rate of the newest step", of_last<&StepRecord::lr>},
    {"gradient_norm",
     "gauge",
     "norm of the newest step's gradient, before clipping",
     of_last<&StepRecord::gradient_norm>},
    {"memory_bytes", "gauge", "peak memory of rank 0", of_last<&StepRecord::memory>},
    {"ranks", "gauge", "ranks that did the newest step", of_last<&StepRecord::ranks>},
    {"skipped_steps_total",
     "counter",
     "steps without an update",
     [](const RunStatus& run) { return Readings{{static_cast<double>(run.skipped)}}; }},
    {"checkpoint_step",
     "gauge",
     "step of the newest checkpoint",
     [](const RunStatus& run) { return reading(run.checkpoint); }},
    {"remaining_seconds",
     "gauge",
     "time to the run's end at the speed of late",
     [](const RunStatus& run) { return reading(run.remaining()); }},
    {"starts_total",
     "counter",
     "starts of the run, restarts included",
     [](const RunStatus& run) {
       return run.goodput ? Readings{{static_cast<double>(run.goodput->starts)}} : Readings();
     }},
    {"goodput_ratio",
     "gauge",
     "share of the run's time that went into steps that count",
     [](const RunStatus& run) {
       return run.goodput ? Readings{{run.goodput->share()}} : Readings();
     }},
    {"time_seconds_total",
     "counter",
     "time of the run, over all starts, by what it went into",
     of_time},
    {"rank_busy_seconds",
     "gauge",
     "time of a step without waiting for other ranks, median of 50",
     [](const RunStatus& run) {
       return of_ranks(run, [](const PartTimes& times) { return times.busy(); });
     }},
    {"rank_waiting_seconds",
     "gauge",
     "time of a step in collectives and transfers, median of 50",
     [](const RunStatus& run) {
       return of_ranks(run, [](const PartTimes& times) { return times[StepPart::waiting]; });
     }},
    {"last_step_timestamp_seconds",
     "gauge",
     "Unix time at which the newest step or evaluation ended",
     [](const RunStatus& run) {
       return run.last() == nullptr || !run.since_step ? Readings()
                                                       : Readings{{unix_now() - *run.since_step}};
     }},
};

/// Source:  Prometheus, "Exposition formats", text-based format 0.0.4
std::string label_value(const std::string& text) {
  std::string escaped = "\"";
  for (const char c : valid_utf8(text)) {
    escaped += c == '\\' ? "\\\\" : c == '"' ? "\\\"" : c == '\n' ? "\\n" : std::string(1, c);
  }
  return escaped + '"';
}

/// Source:  as label_value
std::string exposed_number(double value) {
  return std::isnan(value)   ? "NaN"
         : std::isinf(value) ? (value > 0 ? "+Inf" : "-Inf")
                             : formatted("%.17g", value);
}

} // namespace

std::string exposition(const std::vector<RunStatus>& runs) {
  std::string text;
  for (const MetricFamily& family : kFamilies) {
    const std::string name = "megahost_" + std::string(family.name);
    std::string lines;
    for (const RunStatus& run : runs) {
      for (const Reading& one : family.readings(run)) {
        lines +=
            name + "{run=" + label_value(run.metrics.name) +
            (one.label == nullptr ? "" : "," + std::string(one.label) + "=" + label_value(one.of)) +
            "} " + exposed_number(one.value) + "\n";
      }
    }
    if (!lines.empty()) {
      text += "# HELP " + name + " " + family.help + "\n# TYPE " + name + " " + family.type + "\n" +
              lines;
    }
  }
  return text;
}

} // namespace mh
