#include "core/base/number_text.hpp"
#include "core/base/text.hpp"
#include "core/commands/commands.hpp"
#include "core/draw/columns.hpp"
#include "core/runs/exposition.hpp"
#include "core/runs/run_status.hpp"
#include "megahost/error.hpp"

#include <nlohmann/json.hpp>
#include <unistd.h>

#include <cmath>
#include <cstdio>

namespace mh {

namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kNothing = "-";

Paint paint_of(const RunStatus& run) {
  switch (run.state) {
  case RunState::starting:
    return Paint::yellow;
  case RunState::running:
    return run.is_silent() ? Paint::yellow : Paint::green;
  case RunState::finished:
    return Paint::plain;
  case RunState::stopped:
    return Paint::red;
  }
  return Paint::plain;
}

/// "120 of 200", "120" where it is not known how many there will be.
std::string steps_text(const RunStatus& run) {
  const std::string done = grouped(run.last() == nullptr ? 0 : run.last()->step);
  return run.iterations > 0 ? done + " of " + grouped(run.iterations) : done;
}

double share_done(const RunStatus& run) {
  return run.last() == nullptr
             ? 0
             : static_cast<double>(run.last()->step) / static_cast<double>(run.iterations);
}

std::string losses_text(const std::vector<LossValue>& losses) {
  std::vector<std::string> texts;
  for (const LossValue& loss : losses) {
    texts.push_back(formatted("%.4f (%s)", loss.value, loss.name.c_str()));
  }
  return join(texts);
}

std::string tokens_text(const RunStatus& run) {
  return grouped(std::llround(run.tokens_per_second));
}

std::string speed_text(const RunStatus& run) {
  std::string text =
      tokens_text(run) + " tokens/s, " + formatted("%.3g", run.step_seconds) + " s per step";
  const double waits = 100 * run.data_seconds / run.step_seconds;
  return waits >= 1 ? text + formatted(", %.0f%% of it waiting for data", waits) : text;
}

/// "running: process 4711 of node-3, 8 ranks".
std::string state_text(const RunStatus& run) {
  std::string text(state_name(run.state));
  if (run.goes_on() && run.owner) {
    text += ": process " + std::to_string(run.owner->process) + " of " + run.owner->host;
    if (run.last() != nullptr && run.last()->ranks > 1) {
      text += ", " + grouped(run.last()->ranks) + " ranks";
    }
  }
  return text;
}

/// One run, a fact a line.
void print_status(const RunStatus& run, const Terminal& terminal) {
  std::printf(
      "%s  %s\n",
      terminal.paint(Paint::bold, run.metrics.name).c_str(),
      terminal.paint(paint_of(run), state_text(run)).c_str()
  );
  const auto line = [](const char* name, const std::string& text) {
    std::printf("  %-12s%s\n", name, text.c_str());
  };
  line(
      "step",
      steps_text(run) +
          (run.iterations > 0
               ? formatted("  %s %.0f%%", bar(share_done(run), 20).c_str(), 100 * share_done(run))
               : "")
  );
  if (const StepRecord* update = run.last_update()) {
    line("loss", losses_text(update->losses));
  }
  if (!run.metrics.evaluations.empty()) {
    const EvalRecord& newest = run.metrics.evaluations.back();
    line("validation", losses_text(newest.losses) + " at step " + grouped(newest.step));
  }
  if (run.last() != nullptr) {
    line("speed", speed_text(run));
  }
  if (const auto seconds = run.remaining()) {
    line("remaining", duration_text(*seconds));
  }
  if (run.since_step && run.last() != nullptr) {
    const std::string ago = duration_text(*run.since_step) + " ago";
    const bool is_late = run.state == RunState::running && run.is_silent();
    line(
        "last step", is_late ? terminal.paint(Paint::yellow, ago + ": far longer than a step") : ago
    );
  }
  if (run.last() != nullptr && run.last()->memory > 0) {
    line("memory", bytes_text(run.last()->memory) + " at most");
  }
  if (run.skipped > 0) {
    line("skipped", counted(run.skipped, "step"));
  }
  line("checkpoint", run.checkpoint ? "step " + grouped(*run.checkpoint) : "none yet");
}

/// Several runs, a row each.
void print_rows(const std::vector<RunStatus>& runs, const Terminal& terminal) {
  std::vector<TextRow> rows{
      {"run", "state", "step", "of", "loss", "tokens/s", "remaining", "checkpoint"}};
  for (const RunStatus& run : runs) {
    const StepRecord* update = run.last_update();
    const auto seconds = run.remaining();
    rows.push_back(
        {run.metrics.name,
         std::string(state_name(run.state)),
         run.last() == nullptr ? "0" : grouped(run.last()->step),
         run.iterations > 0 ? grouped(run.iterations) : kNothing,
         update == nullptr ? kNothing : formatted("%.4f", update->losses.front().value),
         run.last() == nullptr ? kNothing : tokens_text(run),
         seconds ? duration_text(*seconds) : kNothing,
         run.checkpoint ? grouped(*run.checkpoint) : kNothing}
    );
  }
  std::fputs(columns(rows, terminal, {Paint::bold}).c_str(), stdout);
}

Json losses_json(const std::vector<LossValue>& losses) {
  Json json = Json::object();
  for (const LossValue& loss : losses) {
    json[loss.name] = loss.value;
  }
  return json;
}

template <class T>
Json optional_json(const std::optional<T>& value) {
  return value ? Json(*value) : Json();
}

Json status_json(const RunStatus& run) {
  const StepRecord* last = run.last();
  const StepRecord* update = run.last_update();
  Json json{{"run", run.metrics.name}, {"state", state_name(run.state)}};
  json["host"] = run.owner ? Json(run.owner->host) : Json();
  json["process"] = run.owner ? Json(run.owner->process) : Json();
  json["step"] = last == nullptr ? 0 : last->step;
  json["iterations"] = run.iterations > 0 ? Json(run.iterations) : Json();
  json["samples"] = last == nullptr ? 0 : last->samples;
  json["tokens"] = last == nullptr ? 0 : last->tokens;
  json["losses"] = losses_json(update == nullptr ? std::vector<LossValue>() : update->losses);
  json["validation"] = Json();
  if (!run.metrics.evaluations.empty()) {
    const EvalRecord& newest = run.metrics.evaluations.back();
    json["validation"] = {{"step", newest.step}, {"losses", losses_json(newest.losses)}};
  }
  json["tokens_per_second"] = run.tokens_per_second;
  json["step_seconds"] = run.step_seconds;
  json["data_seconds"] = run.data_seconds;
  json["remaining_seconds"] = optional_json(run.remaining());
  json["since_step_seconds"] = optional_json(run.since_step);
  json["memory"] = last == nullptr ? 0 : last->memory;
  json["ranks"] = last == nullptr ? 0 : last->ranks;
  json["skipped"] = run.skipped;
  json["checkpoint"] = optional_json(run.checkpoint);
  return json;
}

} // namespace

int command_status(const Invocation& invocation, Host& host) {
  if (invocation.has("--json") && invocation.has("--prometheus")) {
    throw Error("--json and --prometheus are two formats", "give one of them");
  }
  std::vector<RunStatus> runs;
  for (const std::string& folder : invocation.arguments) {
    runs.push_back(read_status(folder, host));
  }
  if (invocation.has("--prometheus")) {
    std::printf("%s", exposition(runs).c_str());
  } else if (invocation.has("--json")) {
    Json list = Json::array();
    for (const RunStatus& run : runs) {
      list.push_back(status_json(run));
    }
    std::printf("%s\n", Json{{"runs", list}}.dump(2).c_str());
  } else if (runs.size() == 1) {
    print_status(runs.front(), Terminal::of(STDOUT_FILENO));
  } else {
    print_rows(runs, Terminal::of(STDOUT_FILENO));
  }
  return 0;
}

} // namespace mh
