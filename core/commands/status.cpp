#include "core/base/number_text.hpp"
#include "core/commands/commands.hpp"
#include "core/draw/columns.hpp"
#include "core/runs/exposition.hpp"
#include "core/runs/run_view.hpp"
#include "megahost/error.hpp"

#include <nlohmann/json.hpp>
#include <unistd.h>

#include <cmath>
#include <cstdio>

namespace mh {

namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kNothing = "-";

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
         run.last() == nullptr ? kNothing : grouped(std::llround(run.tokens_per_second)),
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
  json["goodput"] = goodput_json(run.goodput);
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
    std::fputs(status_text(runs.front(), Terminal::of(STDOUT_FILENO)).c_str(), stdout);
  } else {
    print_rows(runs, Terminal::of(STDOUT_FILENO));
  }
  return 0;
}

} // namespace mh
