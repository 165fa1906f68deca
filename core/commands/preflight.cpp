#include "core/commands/preflight.hpp"

#include "core/base/number_text.hpp"
#include "core/draw/report.hpp"
#include "megahost/error.hpp"

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <cstdio>
#include <memory>
#include <numeric>

namespace mh {

std::vector<std::string>
preflight(const Processes& processes, const Device& device, const PreflightTerms& terms) {
  const World& world = processes.world();
  std::vector<int64_t> everyone(static_cast<size_t>(world.size));
  std::iota(everyone.begin(), everyone.end(), 0);
  const auto log = std::make_shared<CollectiveLog>();
  const auto watch = processes.watch(log, terms.hang_after, warn);
  const Group all(
      "preflight",
      everyone,
      world.rank,
      processes.make_backend(&device)("preflight", everyone, world.rank),
      log
  );
  const Preflight found = check_ranks(all, device, terms.disk);
  auto faults = judge_ranks(found, terms.expected);
  if (world.rank == 0) {
    std::fputs(
        (terms.json ? preflight_json(found, faults) : preflight_text(found, faults)).c_str(), stdout
    );
    std::fflush(stdout);
  }
  return faults;
}

void refuse_faults(const std::vector<std::string>& faults) {
  if (!faults.empty()) {
    const auto more = static_cast<int64_t>(faults.size()) - 1;
    throw Error(
        "the ranks are not alike: " + faults.front() +
            (more > 0 ? ", and " + counted(more, "fault") + " more" : ""),
        "leave those machines out, or find out what else they do; what each rank reaches is above",
        exit_code::communication
    );
  }
}

} // namespace mh
