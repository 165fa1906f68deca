#pragma once
/// Jobs handed to a cluster.

#include "core/cli/invocation.hpp"
#include "core/launch/write.hpp"

#include <string>
#include <vector>

namespace mh {

/// Submits the file that --submit names ("train" unless it does) by kubectl or sbatch, and prints
/// what they say.
///
/// Returns: the exit status
/// Throws:  mh::Error if the program is not there, the cluster cannot be reached, or it refuses the
///          job, with what to do
int submit(
    const Invocation& invocation,
    const Job& job,
    const std::vector<JobFile>& files,
    const std::string& folder
);

} // namespace mh
