#include "core/train/metrics.hpp"

#include <nlohmann/json.hpp>

#include <fstream>

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

Json to_json(const StepRecord& record) {
  return {
      {"step", record.step},
      {"samples", record.samples},
      {"tokens", record.tokens},
      {"losses", to_json(record.losses)},
      {"lr", record.lr},
      {"gradient_norm", record.gradient_norm},
      {"seconds", record.seconds},
      {"memory", record.memory}};
}

Json to_json(const EvalRecord& record) {
  return {{"step", record.step}, {"samples", record.samples}, {"eval", to_json(record.losses)}};
}

Metric from_json(const Json& json) {
  const auto step = json.at("step").get<int64_t>();
  const auto samples = json.value("samples", int64_t{0});
  if (json.contains("eval")) {
    return EvalRecord{step, samples, losses_of(json.at("eval"))};
  }
  return StepRecord{
      .step = step,
      .samples = samples,
      .tokens = json.value("tokens", int64_t{0}),
      .losses = losses_of(json.at("losses")),
      .lr = json.at("lr").get<double>(),
      .gradient_norm = json.at("gradient_norm").get<double>(),
      .seconds = json.at("seconds").get<double>(),
      .memory = json.value("memory", int64_t{0})};
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
