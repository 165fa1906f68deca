#include "core/records/metrics.hpp"

#include <nlohmann/json.hpp>

#include <fstream>
#include <limits>
#include <utility>

namespace mh {

namespace {

using Json = nlohmann::ordered_json;

Json to_json(const std::vector<LossValue>& losses) {
  Json json = Json::object();
  for (const auto& loss : losses) {
    json[loss.name] = loss.value;
  }
  return json;
}

std::vector<LossValue> losses_of(const Json& json) {
  std::vector<LossValue> losses;
  for (const auto& [name, value] : json.items()) {
    losses.push_back({.name = name, .value = value.get<double>()});
  }
  return losses;
}

/// A number, or nothing where it is none.
std::optional<double> number(const Json& json, const char* name) {
  const auto found = json.find(name);
  return found != json.end() && found->is_number() ? std::optional(found->get<double>())
                                                   : std::nullopt;
}

Json to_json(const StepRecord& record) {
  Json json{
      {"step", record.step},
      {"samples", record.samples},
      {"tokens", record.tokens},
      {"batch", record.batch},
      {"losses", to_json(record.losses)},
      {"lr", record.lr},
      {"gradient_norm", record.gradient_norm},
      {"seconds", record.seconds},
      {"data_seconds", record.data_seconds},
      {"memory", record.memory},
      {"tensor_memory", record.tensors},
      {"ranks", record.ranks}};
  for (const auto& metric : record.metrics) {
    json["metrics"][metric.name] = metric.values;
  }
  if (record.time > 0) {
    json["time"] = record.time;
  }
  if (record.skipped) {
    json["skipped"] = record.nan ? "nan" : "guard";
  }
  for (const auto& [name, value] :
       {std::pair{"loss_scale", record.loss_scale},
        {"num_zeros", record.num_zeros},
        {"params_norm", record.params_norm}}) {
    if (value) {
      json[name] = *value;
    }
  }
  return json;
}

Json to_json(const EvalRecord& record) {
  Json json{{"step", record.step}, {"samples", record.samples}, {"eval", to_json(record.losses)}};
  if (record.time > 0) {
    json["time"] = record.time;
  }
  return json;
}

std::vector<MetricValue> metrics_of(const Json& json) {
  std::vector<MetricValue> metrics;
  const Json given = json.value("metrics", Json::object()); // it outlives its items
  for (const auto& [name, values] : given.items()) {
    metrics.push_back({name, values.get<std::vector<double>>()});
  }
  return metrics;
}

Metric from_json(const Json& json) {
  const auto step = json.at("step").get<int64_t>();
  const auto samples = json.value("samples", int64_t{0});
  if (json.contains("eval")) {
    return EvalRecord{step, samples, losses_of(json.at("eval")), json.value("time", 0.0)};
  }
  return StepRecord{
      .step = step,
      .samples = samples,
      .tokens = json.value("tokens", int64_t{0}),
      .batch = json.value("batch", int64_t{0}),
      .losses = losses_of(json.at("losses")),
      .metrics = metrics_of(json),
      .lr = json.at("lr").get<double>(),
      .gradient_norm =
          number(json, "gradient_norm").value_or(std::numeric_limits<double>::quiet_NaN()),
      .seconds = json.at("seconds").get<double>(),
      .data_seconds = json.value("data_seconds", 0.0),
      .memory = json.value("memory", int64_t{0}),
      .tensors = json.value("tensor_memory", int64_t{0}),
      .ranks = json.value("ranks", int64_t{0}),
      .skipped = json.contains("skipped"),
      .nan = json.value("skipped", "") == "nan",
      .time = json.value("time", 0.0),
      .loss_scale = number(json, "loss_scale"),
      .num_zeros = number(json, "num_zeros"),
      .params_norm = number(json, "params_norm")};
}

} // namespace

std::string metric_line(const Metric& metric) {
  return std::visit([](const auto& record) { return to_json(record).dump(); }, metric);
}

std::optional<Metric> parse_metric(const std::string& line) {
  try {
    return from_json(Json::parse(line));
  } catch (const Json::exception&) {
    return std::nullopt;
  }
}

void each_metric(
    const std::filesystem::path& file,
    const std::function<void(const Metric& metric, const std::string& line)>& use
) {
  std::ifstream stream(file);
  for (std::string line; std::getline(stream, line);) {
    if (const auto metric = parse_metric(line)) {
      use(*metric, line);
    }
  }
}

} // namespace mh
