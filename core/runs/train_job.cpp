#include "core/runs/train_job.hpp"

#include "core/base/seconds.hpp"
#include "core/base/text.hpp"
#include "core/draw/report.hpp"
#include "core/install/program.hpp"
#include "core/mesh/launchers.hpp"
#include "core/storage/file_system.hpp"
#include "core/storage/temporary_folder.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <ctime>
#include <exception>
#include <utility>

namespace mh {

namespace {

constexpr std::chrono::seconds kBetweenReports{30};
constexpr double kReportSeconds = 20; // after which a report is given up

/// "2026-06-12T03:00:00Z".
std::string utc_text(double now) {
  const auto seconds = static_cast<std::time_t>(now);
  std::tm parts{};
  gmtime_r(&seconds, &parts);
  std::string text(32, '\0');
  text.resize(std::strftime(text.data(), text.size(), "%Y-%m-%dT%H:%M:%SZ", &parts));
  return text;
}

void add_metric(nlohmann::ordered_json& ret_metrics, const std::string& name, double value) {
  if (std::isfinite(value)) {
    ret_metrics.push_back({{"name", name}, {"value", formatted("%.6g", value)}});
  }
}

nlohmann::ordered_json metrics_of(const RunStatus& run) {
  nlohmann::ordered_json metrics = nlohmann::ordered_json::array();
  add_metric(metrics, "step", static_cast<double>(run.last()->step));
  if (const StepRecord* update = run.last_update()) {
    for (const LossValue& loss : update->losses) {
      add_metric(metrics, loss.name, loss.value);
    }
  }
  if (!run.metrics.evaluations.empty()) {
    for (const LossValue& loss : run.metrics.evaluations.back().losses) {
      add_metric(metrics, "validation " + loss.name, loss.value);
    }
  }
  add_metric(metrics, "tokens_per_second", run.tokens_per_second);
  return metrics;
}

} // namespace

std::optional<TrainJobServer> train_job_server() {
  const Environment environment = process_environment();
  const auto url = environment("KUBEFLOW_TRAINER_SERVER_URL");
  if (!url || url->empty()) {
    return std::nullopt;
  }
  return TrainJobServer{
      .url = *url,
      .certificates = environment("KUBEFLOW_TRAINER_SERVER_CA_CERT").value_or(""),
      .token = environment("KUBEFLOW_TRAINER_SERVER_TOKEN").value_or("")};
}

std::string train_job_status(const RunStatus& run, double now) {
  nlohmann::ordered_json status = nlohmann::ordered_json::object();
  if (run.last() != nullptr && run.iterations > 0) {
    const auto share = static_cast<double>(run.last()->step) / static_cast<double>(run.iterations);
    status["progressPercentage"] =
        std::clamp<int64_t>(std::llround(std::floor(100 * share)), 0, 100);
  }
  if (const auto remaining = run.remaining()) {
    status["estimatedRemainingSeconds"] = std::llround(std::ceil(*remaining));
  } else if (run.state == RunState::finished) {
    status["estimatedRemainingSeconds"] = 0;
  }
  if (run.last() != nullptr) {
    status["metrics"] = metrics_of(run);
  }
  status["lastUpdatedTime"] = utc_text(now);
  return nlohmann::ordered_json{{"trainerStatus", std::move(status)}}.dump();
}

TrainJobReports::TrainJobReports(TrainJobServer server, std::filesystem::path folder, Host& host)
    : server_(std::move(server))
    , folder_(std::move(folder))
    , host_(host)
    , thread_([this] {
      std::unique_lock lock(mutex_);
      while (!over_.wait_for(lock, kBetweenReports, [this] { return ended_; })) {
        report();
      }
    }) {}

TrainJobReports::~TrainJobReports() {
  {
    const std::lock_guard lock(mutex_);
    ended_ = true;
  }
  over_.notify_one();
  thread_.join();
  report();
}

void TrainJobReports::report() {
  std::string why;
  try {
    if (status_) {
      update_status(*status_, host_);
    } else {
      status_ = read_status(folder_, host_);
    }
    const TemporaryFolder work("megahost-report");
    write_file(work.path() / "status", train_job_status(*status_, unix_now()));
    const int status = run_program(
        {helper_program("megahost-post"),
         server_.url,
         server_.certificates,
         server_.token,
         work.path() / "status"},
        {.log = work.path() / "log", .limit = kReportSeconds}
    );
    why = status == 0 ? "" : "\n" + last_lines(work.path() / "log", 3);
  } catch (const std::exception& error) {
    why = std::string(": ") + error.what();
  }
  if (!why.empty() && why != told_) {
    told_ = why;
    warn("the status of the TrainJob was not taken by " + server_.url + "; training goes on" + why);
  }
}

} // namespace mh
