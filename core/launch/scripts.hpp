#pragma once
/// Jobs as shell scripts: what sbatch takes, what torchrun is started by.

#include "core/launch/write.hpp"

#include <string>
#include <vector>

namespace mh {

[[nodiscard]] std::vector<JobFile> write_slurm(const Job& job, const std::string& folder);
[[nodiscard]] std::vector<JobFile> write_torchrun(const Job& job, const std::string& folder);

/// Lines of a shell that fetch the job's files, and the command that makes a corpus of them.
[[nodiscard]] std::string fetch_lines(const Job& job);
[[nodiscard]] std::vector<std::string> prepare_command(const Job& job, const std::string& recipe);

/// The command that compiles a step into device.cache; its text goes to `folder`.
[[nodiscard]] std::vector<std::string>
compile_command(const std::string& recipe, const std::string& folder);

/// The command of every rank, or of every node.
[[nodiscard]] std::vector<std::string> run_command(const Job& job, const std::string& recipe);

} // namespace mh
