#pragma once
/// The end of a run: its curve, a few words from the model, and what to try next.

#include "core/train/run_log.hpp"
#include "core/train/session.hpp"

#include <filesystem>
#include <string>

namespace mh {

/// `command` is how the user named the recipe; `finished` says that all steps are done.
void close_run(
    const Session& session,
    RunLog& log,
    Output& output,
    const std::string& command,
    const std::filesystem::path& folder,
    bool finished
);

} // namespace mh
