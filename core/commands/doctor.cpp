#include "core/bench/doctor.hpp"

#include "core/base/folders.hpp"
#include "core/commands/commands.hpp"
#include "core/commands/preflight.hpp"
#include "core/draw/report.hpp"
#include "core/memory/caching_allocator.hpp"
#include "core/mesh/spawn.hpp"
#include "core/options/place.hpp"
#include "megahost/error.hpp"

#include <unistd.h>

#include <chrono>
#include <cstdio>

namespace mh {

namespace {

int look_at_machine(const Invocation& invocation, Host& host) {
  SeenMachine machine = look(host);
  for (const Registry::Entry* device : host.known(Kind::device)) {
    Speed speed = measure(*device);
    if (speed.there || !machine.gpus.empty()) { // why a card is not used is worth a line
      machine.speeds.push_back(std::move(speed));
    }
  }
  const std::vector<Finding> findings = judge(machine);
  const std::string text = invocation.has("--json")
                               ? doctor_json(machine, findings)
                               : doctor_text(findings, Terminal::of(STDOUT_FILENO));
  std::fputs(text.c_str(), stdout);
  return 0;
}

/// This process is one of the ranks of a job.
int look_at_ranks(const Invocation& invocation, Host& host, const Found& found) {
  constexpr std::chrono::minutes kPatience{5};
  PreflightTerms terms{
      .disk = invocation.has("--disk") ? invocation.value("--disk") : ".",
      .json = invocation.has("--json")};
  if (invocation.has("--on")) {
    ReadOptions options;
    options.roots = recipe_folders();
    terms.expected = find_machine(invocation.value("--on"), options);
  }
  const auto device = host.make<Device>(
      invocation.has("--device") ? invocation.value("--device") : "cpu",
      Table(),
      Device::Args{.local_rank = found.world.local_rank}
  );
  install_caching_allocator();
  const Processes processes(found, kPatience);
  refuse_faults(preflight(processes, *device, terms));
  return 0;
}

} // namespace

int command_doctor(const Invocation& invocation, Host& host) {
  constexpr int64_t kMost = 100'000;
  const auto found = find_place(invocation, host);
  if (found && found->world.size > 1) {
    return look_at_ranks(invocation, host, *found);
  }
  if (invocation.has("--ranks")) {
    const int64_t ranks = number_option(invocation, "--ranks", 2, 2, kMost);
    return run_as_ranks(ranks_to_start(invocation, ranks));
  }
  for (const char* option : {"--on", "--disk", "--device"}) {
    if (invocation.has(option)) {
      throw Error(
          std::string(option) + " is for several ranks, and this is one process",
          "give --ranks N, or let torchrun, srun or mpirun start the ranks of the job"
      );
    }
  }
  return look_at_machine(invocation, host);
}

} // namespace mh
