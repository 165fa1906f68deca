#include "core/records/step_lines.hpp"

#include "core/base/number_text.hpp"
#include "core/formats/json.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <ctime>

namespace mh {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kShownWait = 0.05; // share of a step that waits for samples

/// Means over the steps that one line is about.
struct Interval {
  Interval(const std::vector<StepRecord>& steps, const Rates& rates)
      : last(steps.back()) {
    const auto count = static_cast<double>(steps.size());
    double samples = 0;
    skipped = std::count_if(steps.begin(), steps.end(), [](const auto& s) { return s.skipped; });
    nan = std::count_if(steps.begin(), steps.end(), [](const auto& s) { return s.nan; });
    const double updates = count - static_cast<double>(skipped);
    for (const auto& record : steps) {
      samples += static_cast<double>(rates.batch(record)) / count;
      seconds += record.seconds / count;
      data_seconds += record.data_seconds / count;
      for (const auto& loss : record.losses) {
        auto known = std::find_if(losses.begin(), losses.end(), [&](const auto& other) {
          return other.name == loss.name;
        });
        if (known == losses.end()) {
          losses.push_back({loss.name});
          known = losses.end() - 1;
        }
        known->value += loss.value / updates;
      }
    }
    tokens_per_second = rates.tokens_per_second(seconds, samples);
    flops = rates.flops(seconds, samples);
    share = flops <= rates.peak_flops && flops > 0 ? flops / rates.peak_flops : 0;
  }

  StepRecord last;
  double seconds = 0, data_seconds = 0;
  std::vector<LossValue> losses;
  double tokens_per_second = 0;
  double flops = 0;               // per second and rank
  double share = 0;               // share of the peak; 0 if that is unknown, or was too low
  ptrdiff_t skipped = 0, nan = 0; // counts of steps
};

std::string share_text(double share) {
  return share > 0 ? formatted("%.1f%%", 100 * share) : "n/a";
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
  return formatted("%s.%06d", text, static_cast<int>(micros));
}

std::string z_text(std::optional<double> z) {
  return z ? formatted(" (%+.1fz)", *z) : "";
}

} // namespace

nlohmann::json losses_json(const std::vector<LossValue>& losses) {
  nlohmann::json json = nlohmann::json::object();
  for (const auto& loss : losses) {
    json[loss.name] = loss.value;
  }
  return json;
}

double perplexity(double loss) {
  return std::exp(std::min(20.0, loss));
}

std::vector<std::string>
step_fields(const std::vector<StepRecord>& steps, const Rates& rates, const Outlook& outlook) {
  const Interval mean(steps, rates);
  const auto& last = mean.last;
  std::vector<std::string> fields{formatted(
      "step %6lld/%lld", static_cast<long long>(last.step), static_cast<long long>(rates.iterations)
  )};
  for (const auto& loss : mean.losses) {
    fields.push_back(
        formatted("%s %.4f", loss.name.c_str(), loss.value) +
        (fields.size() == 1 ? z_text(outlook.loss_z) : "")
    );
  }
  if (mean.skipped > 0) {
    fields.push_back(formatted("skipped %td", mean.skipped));
  }
  if (!last.skipped) {
    fields.push_back(formatted("grad norm %.3f", last.gradient_norm) + z_text(outlook.norm_z));
  }
  if (last.loss_scale) {
    fields.push_back(formatted("loss scale %g", *last.loss_scale));
  }
  fields.push_back(formatted("lr %.3e", last.lr));
  fields.push_back(formatted("%.1f ms", 1e3 * mean.seconds));
  if (mean.data_seconds > kShownWait * mean.seconds) {
    fields.push_back(formatted("%.1f ms for data", 1e3 * mean.data_seconds));
  }
  fields.push_back(grouped(static_cast<int64_t>(mean.tokens_per_second)) + " tokens/s");
  fields.push_back(formatted("%.3f TFLOP/s", mean.flops / 1e12));
  fields.push_back("MFU " + share_text(mean.share));
  if (last.memory > 0) {
    fields.push_back("mem " + bytes_text(last.memory));
  }
  fields.push_back("ETA " + duration_text(outlook.seconds_left));
  return fields;
}

std::string peak_warning(const std::vector<StepRecord>& steps, const Rates& rates) {
  const double flops = Interval(steps, rates).flops;
  return rates.peak_flops > 0 && flops > rates.peak_flops
             ? formatted(
                   "warning: MFU is left out: steps do %.4g TFLOP/s, more than the peak of %.4g. Measured "
                   "at a run's start while the machine did other work, a peak is too low: the next start "
                   "measures again",
                   flops / 1e12,
                   rates.peak_flops / 1e12
               )
             : "";
}

std::string megatron_line(const std::vector<StepRecord>& steps, const Rates& rates) {
  const Interval mean(steps, rates);
  const auto& last = mean.last;
  std::string text = formatted(
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
      static_cast<long long>(rates.batch(last))
  );
  for (const auto& loss : mean.losses) {
    text += formatted(" %s: %.6E |", loss.name.c_str(), loss.value);
  }
  text += formatted(" loss scale: %.1f |", last.loss_scale.value_or(1));
  if (!last.skipped) {
    text += formatted(" grad norm: %.3f |", last.gradient_norm);
  }
  if (last.num_zeros) {
    text += formatted(" num zeros: %.1f |", *last.num_zeros);
  }
  if (last.params_norm) {
    text += formatted(" params norm: %.3f |", *last.params_norm);
  }
  return text + formatted(
                    " number of skipped iterations: %3td |"
                    " number of nan iterations: %3td | tokens/s: %.1f | TFLOP/s: %.3f | MFU: %s |",
                    mean.skipped,
                    mean.nan,
                    mean.tokens_per_second,
                    mean.flops / 1e12,
                    share_text(mean.share).c_str()
                );
}

std::string
json_line(const std::vector<StepRecord>& steps, const Rates& rates, const Outlook& outlook) {
  const Interval mean(steps, rates);
  Json json{
      {"step", mean.last.step},
      {"iterations", rates.iterations},
      {"samples", mean.last.samples},
      {"seconds", mean.seconds},
      {"data_seconds", mean.data_seconds},
      {"lr", mean.last.lr},
      {"global_batch", rates.batch(mean.last)},
      {"losses", losses_json(mean.losses)},
      {"gradient_norm", mean.last.gradient_norm},
      {"skipped", mean.skipped},
      {"nan", mean.nan},
      {"tokens_per_second", mean.tokens_per_second},
      {"tflops", mean.flops / 1e12}};
  const auto known = [](bool is, double value) { return is ? Json(value) : Json(); };
  json["mfu"] = known(mean.share > 0, mean.share);
  json["memory"] = mean.last.memory;
  json["loss_scale"] = mean.last.loss_scale.value_or(1);
  json["num_zeros"] = known(mean.last.num_zeros.has_value(), mean.last.num_zeros.value_or(0));
  json["params_norm"] = known(mean.last.params_norm.has_value(), mean.last.params_norm.value_or(0));
  json["loss_z"] = known(outlook.loss_z.has_value(), outlook.loss_z.value_or(0));
  json["gradient_norm_z"] = known(outlook.norm_z.has_value(), outlook.norm_z.value_or(0));
  json["seconds_left"] = outlook.seconds_left;
  return json_text(json);
}

} // namespace mh
