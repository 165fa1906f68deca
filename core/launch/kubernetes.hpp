#pragma once
/// Jobs as manifests of Kubernetes.

#include "core/launch/write.hpp"

#include <string>
#include <vector>

namespace mh {

[[nodiscard]] std::vector<JobFile> write_pytorchjob(const Job& job, const std::string& folder);
[[nodiscard]] std::vector<JobFile> write_hyperpodjob(const Job& job, const std::string& folder);
[[nodiscard]] std::vector<JobFile> write_trainjob(const Job& job, const std::string& folder);
[[nodiscard]] std::vector<JobFile> write_indexed_job(const Job& job, const std::string& folder);
[[nodiscard]] std::vector<JobFile> write_jobset(const Job& job, const std::string& folder);
[[nodiscard]] std::vector<JobFile> write_mpijob(const Job& job, const std::string& folder);

/// Jobs on one pod that fetch files and make a corpus of them, where the job asks for that, and
/// the page that shows the run's event files.
[[nodiscard]] std::vector<JobFile> write_data_jobs(const Job& job);

} // namespace mh
