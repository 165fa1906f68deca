#include "core/records/tensorboard.hpp"

#include "core/base/host_name.hpp"
#include "core/base/number_text.hpp"
#include "core/base/seconds.hpp"
#include "core/formats/event_file.hpp"
#include "megahost/error.hpp"

#include <unistd.h>

#include <algorithm>
#include <system_error>
#include <utility>

namespace mh {
namespace fs = std::filesystem;

namespace {

constexpr const char* kPrefix = "events.out.tfevents.";

/// Readers take files in the order of their names: a new one comes after those that are there.
std::string file_name(const fs::path& folder) {
  auto second = static_cast<long long>(unix_now());
  const std::string prefix = kPrefix;
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with(prefix)) {
      second = std::max(second, std::atoll(name.c_str() + prefix.size()) + 1);
    }
  }
  const int process = getpid();
  return prefix + formatted("%010lld.%s.%d.0", second, host_name().c_str(), process);
}

using Scalars = std::vector<EventScalar>;

/// Each of these is drawn over steps and over samples.
Scalars over_both(const StepRecord& record, const Rates& rates) {
  Scalars scalars;
  for (const auto& loss : record.losses) {
    scalars.push_back({loss.name, loss.value});
  }
  scalars.push_back({"learning-rate", record.lr});
  if (!record.skipped) {
    scalars.push_back({"grad-norm", record.gradient_norm});
  }
  for (const auto& [name, value] :
       {std::pair{"loss-scale", record.loss_scale},
        {"num-zeros", record.num_zeros},
        {"params-norm", record.params_norm}}) {
    if (value) {
      scalars.push_back({name, *value});
    }
  }
  scalars.push_back({"batch-size", static_cast<double>(rates.batch(record))});
  return scalars;
}

Scalars over_both(const EvalRecord& record, const Rates&) {
  Scalars scalars;
  for (const auto& loss : record.losses) {
    scalars.push_back({loss.name + " validation", loss.value});
    scalars.push_back({loss.name + " validation ppl", perplexity(loss.value)});
  }
  return scalars;
}

Scalars over_steps(const StepRecord& record, const Rates& rates) {
  const auto samples = static_cast<double>(rates.batch(record));
  Scalars scalars{
      {"iteration-time", record.seconds},
      {"data-time", record.data_seconds},
      {"throughput", rates.flops(record.seconds, samples) / 1e12},
      {"tokens-per-second", rates.tokens_per_second(record.seconds, samples)},
      {"world-size", static_cast<double>(rates.ranks)}};
  if (record.memory > 0) {
    scalars.push_back({"mem-max-allocated-bytes", static_cast<double>(record.memory)});
  }
  return scalars;
}

Scalars over_steps(const EvalRecord&, const Rates&) {
  return {};
}

std::string steps_event(const Metric& metric, const Rates& rates) {
  Scalars scalars =
      std::visit([&](const auto& record) { return over_both(record, rates); }, metric);
  const auto more =
      std::visit([&](const auto& record) { return over_steps(record, rates); }, metric);
  scalars.insert(scalars.end(), more.begin(), more.end());
  return scalars_event(unix_now(), step_of(metric), scalars);
}

int64_t samples_of(const Metric& metric) {
  return std::visit([](const auto& record) { return record.samples; }, metric);
}

std::string samples_event(const Metric& metric, const Rates& rates) {
  Scalars scalars =
      std::visit([&](const auto& record) { return over_both(record, rates); }, metric);
  for (auto& [tag, value] : scalars) {
    tag += " vs samples";
  }
  return scalars_event(unix_now(), samples_of(metric), scalars);
}

} // namespace

TensorBoard::TensorBoard(
    const fs::path& run,
    const Rates& rates,
    int64_t resumed_step,
    const std::string& recipe_text,
    const std::vector<Metric>& history,
    std::function<void(const std::string&)> warn
)
    : rates_(rates)
    , warn_(std::move(warn)) {
  const fs::path folder = run / "tensorboard";
  std::error_code error;
  fs::create_directories(folder, error);
  if (!error) {
    file_ = folder / file_name(folder);
    stream_.open(file_, std::ios::binary);
  }
  if (!stream_.is_open()) {
    throw Error(
        "cannot write event files in " + folder.string(),
        "choose another checkpoint.dir, free disk space, or set log.tensorboard = false",
        exit_code::data
    );
  }
  std::string bytes = event_file_start(unix_now(), resumed_step + 1);
  bytes += text_event(unix_now(), resumed_step, "recipe", "```toml\n" + recipe_text + "```\n");
  for (const auto& metric : history) {
    if (samples_of(metric) > resumed_step) { // others are not forgotten
      bytes += samples_event(metric, rates_);
    }
  }
  append(bytes);
}

void TensorBoard::write(const Metric& metric) {
  append(steps_event(metric, rates_) + samples_event(metric, rates_));
}

// What follows half a record cannot be read: after a failure nothing more is written.
void TensorBoard::append(const std::string& bytes) {
  if (!stream_) {
    return;
  }
  stream_.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  stream_.flush();
  if (!stream_) {
    warn_("warning: " + file_.string() + " cannot be written; the run goes on without it");
  }
}

void ThinnedMetrics::add(const Metric& metric) {
  if (++skipped_ < every_) {
    return;
  }
  skipped_ = 0;
  kept_.push_back(metric);
  if (kept_.size() >= limit_) {
    every_ *= 2;
    size_t next = 0;
    for (size_t i = 1; i < kept_.size(); i += 2) {
      kept_[next++] = std::move(kept_[i]);
    }
    kept_.resize(next);
  }
}

} // namespace mh
