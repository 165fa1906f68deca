#pragma once
/// The status of a run for Kubeflow Trainer, which shows it with the TrainJob: progress, time left, losses.
///
/// Source:  Kubeflow Trainer, KEP-2779 (feature gate TrainJobStatus): the controller gives each pod
///          KUBEFLOW_TRAINER_SERVER_URL and, as files, _CA_CERT and _TOKEN

#include "core/runs/run_status.hpp"
#include "megahost/export.hpp"

#include <chrono>
#include <condition_variable>
#include <filesystem>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

namespace mh {

/// The endpoint that takes the status of this pod's TrainJob.
struct TrainJobServer {
  std::string url;
  std::string
      certificates;  ///< file of the certificates that it is trusted by; empty: the machine's
  std::string token; ///< file of the token that it asks for, which is renewed; empty: none
};

/// The server that the environment names; none outside of a TrainJob.
[[nodiscard]] std::optional<TrainJobServer> train_job_server();

/// The body of a report: `{"trainerStatus": {...}}`. Metrics are texts, losses by their names.
///
/// Units:   `now` in seconds since 1970
[[nodiscard]] MH_API std::string train_job_status(const RunStatus& run, double now);

/// Reports of a run, one every half minute from a thread of its own and one at its end. A report that
/// is not taken is warned of once; training goes on.
///
/// Thread:  rank 0's main thread
class TrainJobReports {
public:
  TrainJobReports(TrainJobServer server, std::filesystem::path folder, Host& host);
  ~TrainJobReports();
  TrainJobReports(const TrainJobReports&) = delete;
  TrainJobReports& operator=(const TrainJobReports&) = delete;

private:
  void report();

  TrainJobServer server_;
  std::filesystem::path folder_;
  Host& host_;
  std::optional<RunStatus> status_{};
  std::string told_{}; ///< the warning that was given
  std::mutex mutex_;
  std::condition_variable over_;
  bool ended_ = false;
  std::thread thread_; // the last member: it uses the others
};

} // namespace mh
