#pragma once
/// Our own launcher for one machine: `megahost run RECIPE --nproc 8` starts this same command once
/// for each rank and watches over them.

#include "megahost/error.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace mh {

/// Ranks that one machine starts of a run.
struct StartedRanks {
  int64_t count = 1; ///< ranks of this machine
  int64_t first = 0; ///< their numbers begin here
  int64_t world = 1; ///< ranks of the run
  /// The address at which rank 0 opens the store if the run has other machines, too; else on the
  /// loopback.
  std::string master_address{};
  int master_port = 0;
  std::vector<std::string> words{}; ///< their command line, the program first
};

/// How ranks ended that were started here.
struct RanksEnded {
  int status = 0;                 ///< the exit status for the whole
  std::optional<Error> failure{}; ///< error of the rank that failed first, in words
};

/// Runs this program with these words on so many processes.
///
/// The ranks of one machine meet at a socket on 127.0.0.1 that is opened here, so no port is ever
/// taken twice. If one fails, the others are ended within seconds, and the error that came first is
/// that of the run.
/// Ranks whose processes are stopped are named by the others; where the first two are, so that no
/// rank speaks, it is said from here after `hang_after` seconds (0: never).
/// Each rank gets the bytes `handed`, see `handed_bytes`.
[[nodiscard]] RanksEnded
run_ranks(const StartedRanks& ranks, double hang_after = 10, const std::string& handed = "");

/// The same; a failure is shown.
///
/// Returns: the exit status for the whole
[[nodiscard]] int
run_as_ranks(const StartedRanks& ranks, double hang_after = 10, const std::string& handed = "");

/// Whether this process is one of them.
[[nodiscard]] bool is_spawned_rank();

/// The bytes that the process that started this rank passed to all ranks; empty if none.
[[nodiscard]] std::string handed_bytes();

/// The words as exec wants them, a null pointer last; they point into `words`.
[[nodiscard]] std::vector<char*> exec_words(std::vector<std::string>& words);

} // namespace mh
