#include "core/train/signals.hpp"

#include "core/mesh/spawn.hpp"

#include <unistd.h>

#include <array>
#include <csignal>
#include <string_view>

namespace mh {
namespace {

// The one thing that a signal handler may write to.
volatile std::sig_atomic_t received_signal = 0;

// The process that started this one as a rank; 0: it was not started so. Set before the handler.
pid_t launcher = 0;

// Seconds in which a rank without its launcher can save a checkpoint. One that hangs, and would hold
// its device for good, is ended then.
constexpr unsigned kAlone = 600;

constexpr std::array<int, 3> kSignals = {SIGTERM, SIGINT, SIGUSR1};

extern "C" void remember_signal(int signal) {
  if (received_signal != 0) {
    _exit(128 + signal);
  }
  received_signal = signal;
  if (launcher != 0 && getppid() != launcher) {
    alarm(kAlone); // the launcher would have ended what does not stop
  }
  constexpr std::string_view kWords =
      "\nstopping after this step, with a checkpoint; a second signal ends the run at once\n";
  [[maybe_unused]] const auto written = write(STDERR_FILENO, kWords.data(), kWords.size());
}

} // namespace

struct StopSignals::Former {
  std::array<struct sigaction, kSignals.size()> actions;
};

StopSignals::StopSignals()
    : former_(std::make_unique<Former>()) {
  received_signal = 0;
  launcher = is_spawned_rank() ? getppid() : 0;

  struct sigaction action {};

  action.sa_handler = remember_signal;
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  for (size_t i = 0; i < kSignals.size(); ++i) {
    sigaction(kSignals[i], &action, &former_->actions[i]);
  }
}

StopSignals::~StopSignals() {
  for (size_t i = 0; i < kSignals.size(); ++i) {
    sigaction(kSignals[i], &former_->actions[i], nullptr);
  }
}

std::string StopSignals::received() const {
  switch (received_signal) {
  case 0:
    return "";
  case SIGINT:
    return "SIGINT";
  case SIGUSR1:
    return "SIGUSR1";
  default:
    return "SIGTERM";
  }
}

} // namespace mh
