#pragma once
/// SIGTERM, SIGINT and SIGUSR1 (Slurm's --signal, a graceful stop of HyperPod) ask a run to stop after
/// the present step, which is said on standard error; a second one ends the process at once, with
/// status 128 + signal. A rank whose launcher has ended is ended ten minutes after a signal.

#include <memory>
#include <string>

namespace mh {

/// Listens while it lives; one at a time per process.
class StopSignals {
public:
  StopSignals();
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  /// Name of the one that has come, such as "SIGTERM"; else empty.
  [[nodiscard]] std::string received() const;

private:
  struct Former;
  std::unique_ptr<Former> former_;
};

} // namespace mh
