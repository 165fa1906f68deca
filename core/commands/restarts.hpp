#pragma once
/// `megahost run --max-restarts N`: ranks that failed are started again, and go on from the newest
/// checkpoint.

#include "core/mesh/spawn.hpp"

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

namespace mh {

/// One start of a run that failed.
struct FailedStart {
  int status = 0;   ///< exit status
  int64_t step = 0; ///< the last one that was done, by this start or by those before it
  std::string error{};
};

/// Why a run with these failures, the newest last, is not started once more; empty if it is. A
/// mistake in the recipe or the command line stays one, and a run that fails three times in a row
/// after the same step gets no further.
[[nodiscard]] std::string why_not_again(const std::vector<FailedStart>& failed, int64_t most);

/// The command line that goes on with a run: --resume=auto in place of any --resume.
[[nodiscard]] std::vector<std::string> words_to_go_on(std::vector<std::string> words);

struct RestartTerms {
  int64_t most = 0;                 ///< restarts
  std::filesystem::path folder{};   ///< folder that the run takes
  std::vector<std::string> words{}; ///< command line of the first start
  /// Starts the ranks with these words, and waits for their end.
  std::function<RanksEnded(std::vector<std::string> words)> start{};
};

/// Starts a run as often as it takes.
///
/// Returns: the exit status for the whole
[[nodiscard]] int run_with_restarts(const RestartTerms& terms);

} // namespace mh
