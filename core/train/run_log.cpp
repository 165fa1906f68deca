#include "core/train/run_log.hpp"

#include "core/train/words.hpp"
#include "megahost/error.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <ctime>
#include <utility>

namespace mh {
namespace {

using Json = nlohmann::ordered_json;

/// Means over the steps that one line is about.
struct Interval {
  Interval(const std::vector<StepRecord>& steps, const Rates& rates)
      : last(steps.back()) {
    const auto count = static_cast<double>(steps.size());
    for (const auto& record : steps) {
      seconds += record.seconds / count;
      for (const auto& loss : record.losses) {
        auto known = std::find_if(losses.begin(), losses.end(), [&](const auto& other) {
          return other.name == loss.name;
        });
        if (known == losses.end()) {
          losses.push_back({loss.name});
          known = losses.end() - 1;
        }
        known->value += loss.value / count;
      }
    }
    tokens_per_second = static_cast<double>(rates.global_batch * rates.seq) / seconds;
    flops = tokens_per_second * rates.flops_per_token / static_cast<double>(rates.ranks);
    share = rates.peak_flops > 0 ? flops / rates.peak_flops : 0;
  }

  StepRecord last;
  double seconds = 0;
  std::vector<LossValue> losses;
  double tokens_per_second = 0;
  double flops = 0; // per second and rank
  double share = 0; // of the peak; 0 if that is unknown
};

std::string share_text(double share) {
  return share > 0 ? words("%.1f%%", 100 * share) : "n/a";
}

std::string now_text() {
  const auto now = std::chrono::system_clock::now();
  const std::time_t seconds = std::chrono::system_clock::to_time_t(now);
  const auto micros =
      std::chrono::duration_cast<std::chrono::microseconds>(now.time_since_epoch()).count() %
      1000000;
  std::tm local{};
  localtime_r(&seconds, &local);
  char text[32];
  std::strftime(text, sizeof(text), "%Y-%m-%d %H:%M:%S", &local);
  return words("%s.%06d", text, static_cast<int>(micros));
}

Json losses_json(const std::vector<LossValue>& losses) {
  Json json = Json::object();
  for (const auto& loss : losses) {
    json[loss.name] = loss.value;
  }
  return json;
}

} // namespace

Output::~Output() = default;

double perplexity(double loss) {
  return std::exp(std::min(20.0, loss));
}

std::string step_line(const std::vector<StepRecord>& steps, const Rates& rates) {
  const Interval mean(steps, rates);
  const auto& last = mean.last;
  std::string text = words(
      "step %6lld/%lld | samples %lld | %.1f ms | lr %.3e | batch %lld",
      static_cast<long long>(last.step),
      static_cast<long long>(rates.iterations),
      static_cast<long long>(last.samples),
      1e3 * mean.seconds,
      last.lr,
      static_cast<long long>(rates.global_batch)
  );
  for (const auto& loss : mean.losses) {
    text += words(" | %s %.4f", loss.name.c_str(), loss.value);
  }
  return text + words(
                    " | grad norm %.3f | skipped 0 | nan 0 | %s tokens/s | %.3f TFLOP/s | MFU %s",
                    last.gradient_norm,
                    grouped(static_cast<int64_t>(mean.tokens_per_second)).c_str(),
                    mean.flops / 1e12,
                    share_text(mean.share).c_str()
                );
}

std::string megatron_line(const std::vector<StepRecord>& steps, const Rates& rates) {
  const Interval mean(steps, rates);
  const auto& last = mean.last;
  std::string text = words(
      " [%s] iteration %8lld/%8lld | consumed samples: %12lld |"
      " elapsed time per iteration (ms): %.1f |"
      " throughput per GPU (TFLOP/s/GPU): %.1f | learning rate: %.6E |"
      " global batch size: %5lld |",
      now_text().c_str(),
      static_cast<long long>(last.step),
      static_cast<long long>(rates.iterations),
      static_cast<long long>(last.samples),
      1e3 * mean.seconds,
      mean.flops / 1e12,
      last.next_lr,
      static_cast<long long>(rates.global_batch)
  );
  for (const auto& loss : mean.losses) {
    text += words(" %s: %.6E |", loss.name.c_str(), loss.value);
  }
  return text + words(
                    " loss scale: %.1f | grad norm: %.3f | number of skipped iterations: %3d |"
                    " number of nan iterations: %3d | tokens/s: %.1f | TFLOP/s: %.3f | MFU: %s |",
                    1.0,
                    last.gradient_norm,
                    0,
                    0,
                    mean.tokens_per_second,
                    mean.flops / 1e12,
                    share_text(mean.share).c_str()
                );
}

std::string json_line(const std::vector<StepRecord>& steps, const Rates& rates) {
  const Interval mean(steps, rates);
  Json json{
      {"step", mean.last.step},
      {"iterations", rates.iterations},
      {"samples", mean.last.samples},
      {"seconds", mean.seconds},
      {"lr", mean.last.lr},
      {"global_batch", rates.global_batch},
      {"losses", losses_json(mean.losses)},
      {"gradient_norm", mean.last.gradient_norm},
      {"skipped", 0},
      {"nan", 0},
      {"tokens_per_second", mean.tokens_per_second},
      {"tflops", mean.flops / 1e12}};
  json["mfu"] = mean.share > 0 ? Json(mean.share) : Json();
  return json.dump();
}

RunLog::RunLog(
    Output& output,
    std::filesystem::path folder,
    std::string format,
    int64_t interval,
    const Rates& rates,
    int64_t resumed_step
)
    : output_(output)
    , folder_(std::move(folder))
    , format_(std::move(format))
    , interval_(std::max<int64_t>(1, interval))
    , rates_(rates) {
  if (folder_.empty()) {
    return;
  }
  restore(resumed_step);
  text_.open(folder_ / "log.txt", std::ios::app);
  metrics_.open(folder_ / "metrics.jsonl", std::ios::app);
  if (!text_ || !metrics_) {
    throw Error(
        "cannot write log.txt and metrics.jsonl in " + folder_.string(),
        "choose another checkpoint.dir, or free disk space",
        exit_code::data
    );
  }
}

// Records of steps that will be run again are dropped; a line cut off by a crash is too.
void RunLog::restore(int64_t resumed_step) {
  const auto file = folder_ / "metrics.jsonl";
  if (!std::filesystem::exists(file)) {
    return;
  }
  std::ifstream old(file);
  std::string kept;
  for (std::string text; std::getline(old, text);) {
    try {
      const Json json = Json::parse(text);
      const auto step = json.at("step").get<int64_t>();
      if (step > resumed_step) {
        continue;
      }
      const bool evaluation = json.contains("eval");
      const Json& losses = json.at(evaluation ? "eval" : "losses");
      if (!losses.empty()) {
        auto& curve = evaluation ? curves_.validation : curves_.train;
        curve.emplace_back(step, losses.begin()->get<double>());
      }
    } catch (const Json::exception&) {
      continue;
    }
    kept += text + "\n";
  }
  const auto rewritten = folder_ / "metrics.jsonl.new";
  std::ofstream stream(rewritten);
  stream << kept;
  stream.close();
  if (!stream) {
    throw Error("cannot write " + rewritten.string(), "free disk space", exit_code::data);
  }
  std::filesystem::rename(rewritten, file);
}

void RunLog::line(const std::string& text) {
  output_.line(format_ == "json" ? Json{{"note", text}}.dump() : text);
  if (text_.is_open()) {
    text_ << text << std::endl;
    text_.clear(); // a full disk must not end the run
  }
}

void RunLog::metric(const std::string& json) {
  if (!metrics_.is_open()) {
    return;
  }
  metrics_ << json << std::endl;
  if (!metrics_ && !metrics_failed_) {
    metrics_failed_ = true;
    output_.line(
        "warning: " + (folder_ / "metrics.jsonl").string() +
        " cannot be written; the run goes on without it"
    );
  }
  metrics_.clear();
}

void RunLog::step(const StepRecord& record) {
  if (!record.losses.empty()) {
    curves_.train.emplace_back(record.step, record.losses.front().value);
  }
  pending_.push_back(record);
  metric(Json{
      {"step", record.step},
      {"samples", record.samples},
      {"losses", losses_json(record.losses)},
      {"lr", record.lr},
      {"gradient_norm", record.gradient_norm},
      {"seconds", record.seconds}}
             .dump());
  if (record.step % interval_ == 0 || record.step == rates_.iterations) {
    if (format_ == "json") {
      output_.line(json_line(pending_, rates_));
    } else {
      line(format_ == "megatron" ? megatron_line(pending_, rates_) : step_line(pending_, rates_));
    }
    pending_.clear();
  }
  show_progress(record);
}

void RunLog::show_progress(const StepRecord& record) {
  step_seconds_ = step_seconds_ == 0 ? record.seconds : 0.9 * step_seconds_ + 0.1 * record.seconds;
  const double left = step_seconds_ * static_cast<double>(rates_.iterations - record.step);
  output_.progress(
      static_cast<double>(record.step) / static_cast<double>(rates_.iterations),
      words(
          "step %lld/%lld  loss %.4f  %s left",
          static_cast<long long>(record.step),
          static_cast<long long>(rates_.iterations),
          record.losses.empty() ? 0.0 : record.losses.front().value,
          duration_text(left).c_str()
      )
  );
}

void RunLog::evaluation(const EvalRecord& record) {
  if (!record.losses.empty()) {
    curves_.validation.emplace_back(record.step, record.losses.front().value);
  }
  metric(Json{{"step", record.step}, {"eval", losses_json(record.losses)}}.dump());
  if (format_ == "json") {
    output_.line(Json{{"step", record.step}, {"eval", losses_json(record.losses)}}.dump());
    return;
  }
  std::string text =
      format_ == "megatron"
          ? words(" validation loss at iteration %lld |", static_cast<long long>(record.step))
          : words(
                "step %6lld/%lld | validation",
                static_cast<long long>(record.step),
                static_cast<long long>(rates_.iterations)
            );
  for (const auto& loss : record.losses) {
    text += format_ == "megatron" ? words(
                                        " %s value: %.6E | %s PPL: %.6E |",
                                        loss.name.c_str(),
                                        loss.value,
                                        loss.name.c_str(),
                                        perplexity(loss.value)
                                    )
                                  : words(
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
