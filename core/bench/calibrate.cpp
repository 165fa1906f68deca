/// Rates of the operations of real steps.

#include "core/bench/machine.hpp"
#include "core/bench/step.hpp"
#include "core/kernels/processor.hpp"
#include "core/options/read.hpp"
#include "core/plan/rates.hpp"
#include "core/records/robust_z.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <memory>
#include <utility>

namespace mh {

namespace {

/// Models whose steps are recorded: two widths and three lengths, with and without dropout, with a
/// large vocabulary and small ones, weights of which some fit into caches and others do not.
constexpr const char* kModels[] = {
    R"(
model = { use = "llama", layers = 2, hidden = 1024, heads = 16, ffn_hidden = 2816, vocab = 32000, seq_length = 512 }
batch = { global = 2, micro = 2 }
)",
    R"(
model = { use = "gpt", layers = 2, hidden = 512, heads = 8, vocab = 8192, seq_length = 256, dropout = 0.1, attention_dropout = 0.1 }
batch = { global = 8, micro = 4 }
)",
    R"(
model = { use = "gpt", layers = 2, hidden = 512, heads = 8, vocab = 1024, seq_length = 1536, dropout = 0.1, attention_dropout = 0.1 }
batch = { global = 2, micro = 1 }
)",
    R"(
model = { use = "llama", layers = 2, hidden = 256, heads = 4, ffn_hidden = 704, vocab = 512, seq_length = 256 }
batch = { global = 2, micro = 2 }
)",
};

Recipe model_recipe(const char* text, const char* precision, Host& host) {
  const char* name = "bench --calibrate";
  Loaded loaded{name, {}, Value(Table{}), {}};
  const Value model = read_toml(std::make_shared<const Source>(Source{name, text, name}));
  const Table rest{
      {"name", "calibration"},
      {"precision", precision},
      {"data", Table{{"use", "mock"}}},
      {"tokenizer", Table{{"use", "null"}, {"vocab", *model.find_path("model.vocab")}}},
      {"optimizer", Table{{"use", "adamw"}, {"lr", 1e-4}, {"clip_grad", 1.0}}},
      {"train", Table{{"iters", 1000}}}};
  loaded.layers = {{name, model}, {name, rest}};
  loaded.merged = merge(model, rest);
  return resolve_loaded(loaded, host, {.bf16 = this_processor().bf16(), .world = 1}).recipe;
}

/// The events of a step, each with the median of its seconds over some steps.
struct TimedStep {
  std::vector<PlanEvent> events;
  double rest = 0; ///< seconds of the step in no event
};

TimedStep time_step(const Recipe& recipe, Host& host) {
  constexpr int kWarmUpSteps = 3;
  constexpr double kSeconds = 2; // seconds that steps are measured for; there are at least three
  StepByStep run(recipe, host);
  for (int i = 0; i < kWarmUpSteps; ++i) {
    run.train();
  }
  TimedStep step;
  std::vector<std::vector<double>> seconds; // seconds of each event
  std::vector<double> rests;
  for (double spent = 0; rests.size() < 3 || (spent < kSeconds && rests.size() < 15);) {
    PlanRecorder recorder;
    const double whole = run.train();
    spent += whole;
    step.events = recorder.events();
    seconds.resize(step.events.size());
    double counted = 0;
    for (size_t i = 0; i < step.events.size(); ++i) {
      seconds[i].push_back(step.events[i].seconds);
      counted += step.events[i].seconds;
    }
    rests.push_back(whole - counted);
  }
  for (size_t i = 0; i < step.events.size(); ++i) {
    step.events[i].seconds = median(seconds[i]);
  }
  step.rest = median(rests);
  return step;
}

} // namespace

Machine calibrate_cpu(Host& host) {
  Machine machine = measure_cpu(at::kFloat, product_rate(at::kFloat), kRepeated);
  std::vector<const char*> precisions{"fp32"};
  if (this_processor().bf16()) {
    machine.hardware.bf16_tflops = product_rate(at::kBFloat16) / 1e12;
    precisions.push_back("bf16");
  }
  std::vector<PlanEvent> events;
  std::vector<double> gaps; // time between two events in each model
  for (const char* precision : precisions) {
    for (const char* model : kModels) {
      const TimedStep step = time_step(model_recipe(model, precision, host), host);
      events.insert(events.end(), step.events.begin(), step.events.end());
      gaps.push_back(step.rest / static_cast<double>(step.events.size()));
    }
  }
  machine.calibration.source = "steps of " + std::to_string(std::size(kModels)) + " small models";
  machine.calibration.rates = rates_of(events);
  machine.calibration.between_us = 1e6 * std::max(0.0, median(std::move(gaps)));
  return machine;
}

void take_links(const BenchTable& collectives, Machine& ret_machine) {
  double small = 0, small_bytes = 0, large = 0, large_bytes = 0;
  for (const auto& row : collectives.rows) {
    if (row["operation"] != "all-reduce") {
      continue;
    }
    const double bytes = 1e3 * row["kilobytes"].get<double>();
    const double seconds = 1e-6 * row["microseconds"].get<double>();
    if (small_bytes == 0 || bytes < small_bytes) {
      small = seconds;
      small_bytes = bytes;
    }
    if (bytes > large_bytes) {
      large = seconds;
      large_bytes = bytes;
    }
  }
  // Between two: two rounds, and as many bytes as the tensor has.
  const double per_byte = (large - small) / (large_bytes - small_bytes);
  ret_machine.hardware.link_gb_s = 1e-9 / per_byte;
  ret_machine.calibration.link_us = 1e6 * std::max(0.0, small - small_bytes * per_byte) / 2;
}

} // namespace mh
