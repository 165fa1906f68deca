// The time that the comparison of ranks takes of a step: the clock of its parts, the medians of every
// fifty steps, and one gather of them, here of 64 ranks that are there already.

#include "core/mesh/collective_log.hpp"
#include "core/records/rank_times.hpp"

#include <cstdio>
#include <string>
#include <vector>

int main() {
  constexpr int64_t kSteps = 20'000;
  constexpr double kShare = 0.005; // share of a step, at most
  mh::Ranks ranks;
  ranks.gather = [](const std::string& own) { return std::vector<std::string>(64, own); };
  mh::CollectiveLog log;
  mh::RankComparison comparison(ranks, /*stage=*/0, /*hosts_compute=*/true);
  for (const int passes : {1, 8, 64}) { // microbatches of a step
    const auto begin = mh::Clock::now();
    for (int64_t step = 1; step <= kSteps; ++step) {
      mh::PartClock clock(log);
      for (int pass = 0; pass < passes; ++pass) {
        clock.begin(mh::StepPart::forward);
        clock.begin(mh::StepPart::backward);
      }
      clock.begin(mh::StepPart::update);
      if (const auto table = comparison.add(step, clock.end())) {
        (void)comparison.sentence(*table);
      }
    }
    const double each = mh::seconds_since(begin) / static_cast<double>(kSteps);
    std::printf(
        "%2d microbatches: %.1f us of a step, 0.5%% of one of %.1f ms\n",
        passes,
        1e6 * each,
        1e3 * each / kShare
    );
  }
  return 0;
}
