#include "core/launch/write.hpp"

#include "core/base/text.hpp"
#include "core/launch/kubernetes.hpp"
#include "core/launch/scripts.hpp"
#include "megahost/error.hpp"

#include <algorithm>

namespace mh {

const std::vector<Target>& targets() {
  static const std::vector<Target> all{
      {"slurm", "a script for sbatch", false, false, false, write_slurm},
      {"torchrun", "a script that each node runs", false, false, false, write_torchrun},
      {"pytorchjob", "Kubeflow's Training Operator 1.9", true, true, true, write_pytorchjob},
      {"hyperpod", "SageMaker HyperPod's training operator", true, true, true, write_hyperpodjob},
      {"trainjob", "Kubeflow Trainer 2", true, true, true, write_trainjob},
      {"job", "an Indexed Job of Kubernetes itself", true, true, true, write_indexed_job},
      {"jobset", "JobSet", true, true, true, write_jobset},
      {"mpijob", "the MPI Operator", true, true, true, write_mpijob},
  };
  return all;
}

const Target& find_target(const std::string& name) {
  std::vector<std::string> names;
  for (const Target& target : targets()) {
    if (target.name == name) {
      return target;
    }
    names.emplace_back(target.name);
  }
  throw Error("there is no target " + name, "take " + alternatives(names));
}

const std::vector<std::string>& trainer_versions() {
  static const std::vector<std::string> versions{"2.0", "2.1", "2.2", "2.3"};
  return versions;
}

std::vector<JobFile> write_job(const Job& job, const std::string& folder) {
  const Target& target = find_target(job.target);
  std::vector<JobFile> files = target.write(job, folder);
  if (target.kubernetes) {
    std::vector<JobFile> data = write_data_jobs(job);
    files.insert(files.begin(), data.begin(), data.end());
  }
  return files;
}

} // namespace mh
