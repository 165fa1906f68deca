#include "core/bench/step.hpp"

#include "core/base/number_text.hpp"
#include "core/base/seconds.hpp"
#include "core/bench/bench.hpp"
#include "core/bench/gemm_choice.hpp"
#include "core/memory/caching_allocator.hpp"
#include "core/plan/stage_record.hpp"
#include "core/records/robust_z.hpp"
#include "core/session/session.hpp"
#include "core/train/start_block.hpp"
#include "megahost/error.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <fstream>

namespace mh {

namespace {

constexpr int64_t kWarmUp = 3; // steps until every tensor's memory is there

/// A line of /proc/self/status in bytes: "VmRSS:", "VmHWM:".
int64_t process_bytes(std::string_view name) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with(name)) {
      return std::atoll(line.c_str() + name.size()) * 1024;
    }
  }
  return 0;
}

} // namespace

StepByStep::StepByStep(const Recipe& recipe, Host& host)
    : session_(make_session(
          recipe,
          host,
          {.step_peak =
               step_peak({.recipe = recipe, .host = host, .device = planned_device(recipe, host)})}
      ))
    , base_bytes_(process_bytes("VmRSS:")) {
  for (const auto& parameter : session_->model->parameters().all()) {
    base_bytes_ -= static_cast<int64_t>(parameter.value.nbytes());
  }
  if (session_->dtype == at::kFloat && session_->device->device().is_cpu()) {
    ops::use_gemm(ops::gemm_choice_of(chosen_gemm()));
  }
  session_->allocate_gradients();
  weights_ = std::make_unique<Weights>(
      *session_->gradients, *session_->optimizer, weight_options(recipe, session_->mesh)
  );
  data_ = std::make_unique<Prefetcher>(*session_->corpus, Split::train, [this](int64_t) {
    return session_->layout();
  });
}

StepByStep::~StepByStep() = default;

double StepByStep::train() {
  const Recipe& recipe = session_->recipe;
  const auto begin = Clock::now();
  const auto batches = data_->get(done_ * recipe.batch.global, /*left=*/1);
  const int64_t number = ++done_;
  const auto done = train_step(
      session_->passes(),
      *weights_,
      *session_->optimizer,
      batches,
      {.seed = static_cast<uint64_t>(number),
       .clip = recipe.optimizer.clip_grad,
       .update = {.step = number, .lr = session_->schedule->lr({number - 1, 0})}}
  );
  session_->device->synchronize();
  if (!done.updated) {
    throw Error(
        "step " + std::to_string(number) + " gave numbers that are not finite",
        "lower optimizer.lr",
        exit_code::numbers
    );
  }
  return seconds_since(begin);
}

StepBench bench_step(const Recipe& recipe, Host& host, int64_t steps) {
  StepBench result{.recipe = recipe.name, .precision = recipe.precision};
  StepByStep run(recipe, host);
  const Session& session = run.session();
  result.base_bytes = run.base_bytes();
  for (int64_t i = 1; i <= kWarmUp; ++i) {
    run.train();
  }
  const int64_t asked = allocator_counts().system_requests;
  const int64_t resident = process_bytes("VmRSS:");
  for (int64_t i = 1; i <= steps; ++i) {
    result.seconds.push_back(run.train());
  }
  result.system_requests = allocator_counts().system_requests - asked;
  result.grown_bytes = process_bytes("VmRSS:") - resident;
  result.peak_bytes = session.device->peak_memory();
  result.state_bytes = state_bytes(session, run.weights());
  const auto tokens = static_cast<double>(session.tokens_per_sample());
  result.tokens = recipe.batch.global * session.tokens_per_sample();
  const auto& forward = session.model->flops();
  result.product_flops = 3 * forward.gemms / tokens;
  result.attention_flops = 3 * forward.attention / tokens;
  if (session.device->device().is_cpu()) {
    result.peak_flops = product_rate(session.dtype);
  } else {
    result.peak_flops = session.device->peak_flops(session.dtype);
  }
  return result;
}

double StepBench::step() const {
  return median(seconds);
}

double StepBench::flops() const {
  return (product_flops + attention_flops) * static_cast<double>(tokens) / step();
}

std::string step_text(const StepBench& b) {
  const auto [fastest, slowest] = std::minmax_element(b.seconds.begin(), b.seconds.end());
  std::string text = formatted(
      "%s, %s, %s tokens a step, %zu steps after %lld\n\n",
      b.recipe.c_str(),
      b.precision.c_str(),
      grouped(b.tokens).c_str(),
      b.seconds.size(),
      static_cast<long long>(kWarmUp)
  );
  text += formatted("  step     %.3f s (median; %.3f to %.3f)\n", b.step(), *fastest, *slowest);
  text += "  tokens   " + grouped(std::llround(static_cast<double>(b.tokens) / b.step())) +
          " per second\n";
  text += formatted("  model    %.0f GFLOP/s", b.flops() / 1e9);
  if (b.peak_flops > 0) {
    text += formatted(
        ", %.0f%% of the %.0f GFLOP/s of a GEMM of large matrices",
        100 * b.flops() / b.peak_flops,
        b.peak_flops / 1e9
    );
  }
  text += "\n  memory   " + bytes_text(b.peak_bytes) +
          " at most: weights, gradients and optimizer " + bytes_text(b.state_bytes) +
          ", the program and its libraries " + bytes_text(b.base_bytes) +
          ", activations and buffers the rest\n";
  return text + formatted(
                    "  growth   %s of resident memory and %lld requests to the system's allocator "
                    "in these steps\n",
                    bytes_text(b.grown_bytes).c_str(),
                    static_cast<long long>(b.system_requests)
                );
}

std::string step_json(const StepBench& b) {
  nlohmann::ordered_json json{
      {"recipe", b.recipe},
      {"precision", b.precision},
      {"steps", b.seconds.size()},
      {"step_s", b.step()},
      {"step_seconds", b.seconds},
      {"fastest_step_s", *std::min_element(b.seconds.begin(), b.seconds.end())},
      {"tokens_per_step", b.tokens},
      {"tokens_per_s", static_cast<double>(b.tokens) / b.step()},
      {"model_gflops_per_s", b.flops() / 1e9},
      {"peak_gflops_per_s", b.peak_flops / 1e9},
      {"share_of_peak", b.peak_flops > 0 ? b.flops() / b.peak_flops : 0},
      {"model_flops_per_token", b.product_flops + b.attention_flops},
      {"product_flops_per_token", b.product_flops},
      {"attention_flops_per_token", b.attention_flops},
      {"rss_gb", static_cast<double>(b.peak_bytes) / 1e9},
      {"state_gb", static_cast<double>(b.state_bytes) / 1e9},
      {"base_gb", static_cast<double>(b.base_bytes) / 1e9},
      {"rss_growth_gb", static_cast<double>(b.grown_bytes) / 1e9},
      {"system_requests", b.system_requests}};
  return json.dump(2) + "\n";
}

BenchTable bench_data(const Recipe& recipe, Host& host) {
  const auto opening = Clock::now();
  const auto session = make_session(recipe, host, {.initialise = false});
  const double opened = seconds_since(opening);
  const auto layout = session->layout();
  const int64_t size = samples_of(*session->corpus, Split::train);
  BenchTable table{
      .title = "samples of " + recipe.name + ": " + session->corpus->summary(),
      .columns =
          {{"order", "order"},
           {"samples_per_s", "samples/s"},
           {"tokens_per_s", "tokens/s"},
           {"megabytes_per_s", "MB/s", 1}},
      .rows = {},
      .note = formatted(
          "the run was opened in %.2f s; one thread loads during the step before", opened
      )};
  for (const bool ahead : {false, true}) {
    Prefetcher data(*session->corpus, Split::train, [&layout](int64_t) { return layout; });
    double bytes = 0;
    int64_t samples = 0;
    const auto start = Clock::now();
    while (seconds_since(start) < 1 && samples < size) {
      const auto batches = ahead ? data.get(samples, /*left=*/1)
                                 : load_batches(*session->corpus, Split::train, samples, layout);
      for (const auto& batch : batches) {
        for (const auto& [name, array] : batch.arrays) {
          bytes += static_cast<double>(array.nbytes());
        }
      }
      samples += layout.global();
    }
    const double seconds = seconds_since(start);
    table.rows.push_back(
        {{"order", ahead ? "one step ahead" : "as asked"},
         {"samples_per_s", static_cast<double>(samples) / seconds},
         {"tokens_per_s", static_cast<double>(samples * layout.seq) / seconds},
         {"megabytes_per_s", bytes / seconds / 1e6}}
    );
  }
  return table;
}

} // namespace mh
