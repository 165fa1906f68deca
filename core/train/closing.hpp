#pragma once
/// The end of a run: its curve, a few words from the model, and what to try next.

#include "core/records/run_log.hpp"
#include "core/session/session.hpp"
#include "core/train/train.hpp"

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

namespace mh {

/// A command that goes on from a run's end.
struct NextCommand {
  std::vector<std::string> anew; ///< keys that `options` sets
  std::string options;           ///< " --resume --set train.iters=24"
  std::string comment;           ///< a phrase on what it does
};

/// A command line about this run, quoted for a shell: PROGRAM COMMAND RECIPE OPTIONS. The options
/// are those that were given, without train.exit_iters and `anew`, keys that the caller sets after
/// them, and name the folder that the run took.
[[nodiscard]] std::string command_line(
    const TrainOptions& options,
    const Recipe& recipe,
    const std::filesystem::path& folder,
    const std::string& command,
    const std::vector<std::string>& anew = {}
);

/// Prints the end of a run: its curve, a sample, its folder, and what to try next. `train_on` gives
/// the command that continues a run that has finished, and is empty for others. All of it is for
/// show: a failure is left out with a warning.
void close_run(
    const Session& session,
    RunLog& log,
    Output& output,
    const TrainOptions& options,
    const std::filesystem::path& folder,
    const std::function<NextCommand()>& train_on
);

} // namespace mh
