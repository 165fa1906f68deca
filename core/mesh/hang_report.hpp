#pragma once
/// The reports that ranks leave in the run folder when the run hangs or ranks lose one another.

#include "core/mesh/collective_log.hpp"

#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <string>

namespace mh {

/// The folder of a run for reports.
[[nodiscard]] std::filesystem::path hang_folder(const std::filesystem::path& run);

/// Writes rank-N.txt there: why, the stack of each of its threads, and its last collectives. One
/// that cannot be written is left out.
MH_API void write_hang_report(
    const std::filesystem::path& folder,
    int64_t rank,
    const std::string& why,
    const CollectiveLog& log
);

/// Writes the same file for a rank of this machine that does not answer: what the system says of its process, and
/// its place as it told it last. Nothing where the system shows no such process.
void write_report_of_silent(
    const std::filesystem::path& folder,
    int64_t rank,
    const std::string& why,
    pid_t process,
    const RankProgress& last
);

} // namespace mh
