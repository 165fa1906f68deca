#pragma once
/// The end of a run: its curve, a few words from the model, and what to try next.

#include "core/train/run_log.hpp"
#include "core/train/session.hpp"
#include "core/train/trainer.hpp"

#include <filesystem>
#include <string>

namespace mh {

/// A command line about this run, quoted for a shell: PROGRAM COMMAND RECIPE OPTIONS. The options
/// are those that were given, without train.exit_iters and `anew`, a key that the caller sets after
/// them, and name the folder that the run took.
[[nodiscard]] std::string command_line(
    const TrainOptions& options,
    const Recipe& recipe,
    const std::filesystem::path& folder,
    const std::string& command,
    const std::string& anew = ""
);

/// What a finished run ends with.
void close_run(
    const Session& session,
    RunLog& log,
    Output& output,
    const TrainOptions& options,
    const std::filesystem::path& folder,
    bool finished
);

} // namespace mh
