#include "core/records/run_log.hpp"

#include "core/base/number_text.hpp"
#include "core/base/text.hpp"
#include "core/base/visible.hpp"
#include "core/formats/json.hpp"
#include "core/records/metrics.hpp"
#include "core/storage/file_system.hpp"
#include "megahost/error.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <utility>

namespace mh {
namespace {

using Json = nlohmann::ordered_json;

} // namespace

Output::~Output() = default;

void Output::fields(const std::vector<std::string>& fields) {
  line(join(fields, " | "));
}

void Output::warning(const std::string& text) {
  line("warning: " + text);
}

RunLog::RunLog(
    Output& output,
    std::filesystem::path folder,
    const Recipe::Log& options,
    const Rates& rates,
    int64_t resumed_step,
    const std::string& recipe_text
)
    : output_(output)
    , folder_(std::move(folder))
    , format_(options.format)
    , interval_(options.interval)
    , rates_(rates) {
  if (folder_.empty()) {
    return;
  }
  const auto history = restore(resumed_step);
  text_.open(folder_ / "log.txt", std::ios::app);
  metrics_.open(metrics_file(folder_), std::ios::app);
  if (!text_ || !metrics_) {
    throw Error(
        "cannot write log.txt and metrics.jsonl in " + folder_.string(),
        "choose another checkpoint.dir, or free disk space",
        exit_code::data
    );
  }
  if (options.tensorboard) {
    tensorboard_ = std::make_unique<TensorBoard>(
        folder_,
        rates_,
        resumed_step,
        recipe_text,
        history,
        [this](const auto& text) { line(text); }
    );
  }
}

// Records of steps that will be run again are dropped; a line cut off by a crash is too.
std::vector<Metric> RunLog::restore(int64_t resumed_step) {
  const auto file = metrics_file(folder_);
  if (!std::filesystem::exists(file)) {
    return {};
  }
  std::string kept;
  ThinnedMetrics steps, evaluations;
  each_metric(file, [&](const Metric& metric, const std::string& line) {
    lost_.alive = std::max(lost_.alive, time_of(metric));
    if (const auto* step = std::get_if<StepRecord>(&metric);
        step != nullptr && step->step > resumed_step) {
      ++lost_.steps;
      lost_.seconds += step->seconds;
    }
    if (step_of(metric) <= resumed_step) {
      remember(metric);
      (std::holds_alternative<StepRecord>(metric) ? steps : evaluations).add(metric);
      kept += line + "\n";
    }
  });
  replace_file(file, kept);
  auto history = steps.kept();
  history.insert(history.end(), evaluations.kept().begin(), evaluations.kept().end());
  return history;
}

/// Keeps of a metric what later lines need.
void RunLog::remember(const Metric& metric) {
  const auto* step = std::get_if<StepRecord>(&metric);
  const auto& losses = step != nullptr ? step->losses : std::get<EvalRecord>(metric).losses;
  if (!losses.empty()) {
    auto& curve = step != nullptr ? curves_.train : curves_.validation;
    curve.emplace_back(step_of(metric), losses.front().value);
  }
  if (step != nullptr) {
    outlook_.loss_z = losses.empty() ? std::nullopt : loss_scores_.add(losses.front().value);
    outlook_.norm_z = step->skipped ? std::nullopt : norm_scores_.add(step->gradient_norm);
  }
}

void RunLog::line(const std::string& text) {
  const std::string shown = visible(text, "\n\t"); // parts of it come from files of others
  output_.line(format_ == "json" ? json_text(Json{{"note", text}}) : shown);
  keep_line(shown);
}

void RunLog::keep_line(const std::string& text) {
  if (text_.is_open()) {
    text_ << text << std::endl;
    text_.clear(); // a full disk must not end the run
  }
}

void RunLog::write(const Metric& metric) {
  if (!metrics_.is_open()) {
    return;
  }
  metrics_ << metric_line(metric) << std::endl;
  if (!metrics_ && !metrics_failed_) {
    metrics_failed_ = true;
    output_.line(
        "warning: " + metrics_file(folder_).string() +
        " cannot be written; the run goes on without it"
    );
  }
  metrics_.clear();
  if (tensorboard_ != nullptr) {
    tensorboard_->write(metric);
  }
}

void RunLog::step(const StepRecord& record) {
  remember(record);
  write(record);
  pending_.push_back(record);
  step_seconds_ = step_seconds_ == 0 ? record.seconds : 0.9 * step_seconds_ + 0.1 * record.seconds;
  outlook_.seconds_left = step_seconds_ * static_cast<double>(rates_.iterations - record.step);
  if (record.step % interval_ == 0 || record.step == rates_.iterations) {
    show_steps();
    pending_.clear();
  }
  output_.progress(
      static_cast<double>(record.step) / static_cast<double>(rates_.iterations),
      formatted(
          "step %lld/%lld  loss %.4f  ETA %s",
          static_cast<long long>(record.step),
          static_cast<long long>(rates_.iterations),
          record.losses.empty() ? 0.0 : record.losses.front().value,
          duration_text(outlook_.seconds_left).c_str()
      )
  );
}

void RunLog::show_steps() {
  if (const std::string warning = warned_of_peak_ ? "" : peak_warning(pending_, rates_);
      !warning.empty()) {
    warned_of_peak_ = true;
    line(warning);
  }
  if (format_ == "json") {
    output_.line(json_line(pending_, rates_, outlook_));
  } else if (format_ == "megatron") {
    line(megatron_line(pending_, rates_));
  } else {
    const auto fields = step_fields(pending_, rates_, outlook_);
    output_.fields(fields);
    keep_line(join(fields, " | "));
  }
}

void RunLog::evaluation(const EvalRecord& record) {
  remember(record);
  write(record);
  if (format_ == "json") {
    output_.line(json_text(Json{{"step", record.step}, {"eval", losses_json(record.losses)}}));
    return;
  }
  std::string text =
      format_ == "megatron"
          ? formatted(" validation loss at iteration %lld |", static_cast<long long>(record.step))
          : formatted(
                "step %6lld/%lld | validation",
                static_cast<long long>(record.step),
                static_cast<long long>(rates_.iterations)
            );
  for (const auto& loss : record.losses) {
    if (!loss.main) {
      text += format_ == "megatron" ? formatted(" %s value: %.6E |", loss.name.c_str(), loss.value)
                                    : formatted(" | %s %.4f", loss.name.c_str(), loss.value);
      continue;
    }
    text += format_ == "megatron" ? formatted(
                                        " %s value: %.6E | %s PPL: %.6E |",
                                        loss.name.c_str(),
                                        loss.value,
                                        loss.name.c_str(),
                                        perplexity(loss.value)
                                    )
                                  : formatted(
                                        " | %s %.4f | perplexity %.2f",
                                        loss.name.c_str(),
                                        loss.value,
                                        perplexity(loss.value)
                                    );
  }
  if (format_ != "megatron") {
    line(text);
    return;
  }
  const std::string dashes(text.size(), '-');
  line(dashes);
  line(text);
  line(dashes);
}

} // namespace mh
