#pragma once
/// A training job as a value: what runs where, with which resources, and why each variable is set.
/// `write.hpp` turns it into what one submits.

#include "core/launch/node.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace mh {

/// A variable of the environment, and why it is set.
struct JobVariable {
  std::string name, value, reason;
};

/// A folder of the job's processes that outlives them, or lies in memory.
struct Volume {
  enum class Kind : uint8_t {
    claim, ///< a PersistentVolumeClaim that is there
    fsx,   ///< a claim that is made, of FSx for Lustre's storage class
    s3,    ///< a bucket, by Mountpoint's driver: volume and claim are made
    host   ///< a folder of the node
  };

  Kind kind = Kind::claim;
  std::string name; ///< name of the claim or the bucket; for `host` the folder there
  std::string path; ///< path at which processes find it
};

/// The choices of the command line; empty and 0: not chosen.
struct LaunchOptions {
  std::string target;
  std::string api; ///< version of Kubeflow Trainer
  int64_t nodes = 1;
  std::vector<std::string> instances; ///< names of hardware.toml
  bool hyperpod = false;              ///< they are HyperPod's, "ml." before them
  std::string name, image, name_space;
  std::optional<int64_t> gpus, efa; ///< devices of a node
  bool huge_pages = true;
  bool preflight = false;               ///< ranks are compared before they train
  int64_t shared_memory = 0;            ///< GiB; 0: half of the node's memory, as Kubernetes has it
  std::vector<std::string> volumes;     ///< KIND:NAME:PATH
  std::vector<std::string> environment; ///< NAME=VALUE, or "NAME=VALUE # reason"
  std::vector<std::string> ports;       ///< NAME=NUMBER
  std::vector<std::string> zones;
  std::string libfabric, ofi_nccl; ///< versions
  double hours = 0;
  int64_t restarts = 3;
  std::string priority, gang, queue;
  std::string copy_to;                      ///< place in a store for the run folder's copy
  std::vector<std::string> sbatch;          ///< further options of sbatch
  std::string tensorboard;                  ///< image that shows the run's event files
  std::vector<std::string> fetch;           ///< addresses of files
  std::string fetch_to;                     ///< the folder where they go
  std::vector<std::string> prepare;         ///< inputs that `data prepare` makes a corpus of
  std::string prepare_to;                   ///< the corpus's prefix
  std::vector<std::string> prepare_options; ///< further words of `data prepare`
};

/// A recipe's requirements of a job.
struct RunFacts {
  std::string name;       ///< name of the run
  std::string recipe;     ///< its text, resolved, as TOML
  bool on_gpu = true;     ///< whether its device is a GPU, or another accelerator
  bool rounds = false;    ///< weights and state are in bf16 alone: the device rounds at random
  std::string run_folder; ///< folder of log and event files
};

struct Job {
  std::string target, api;
  std::string name, image, name_space;
  RunFacts run;
  int64_t nodes = 1;
  int64_t ranks = 1;     ///< ranks of a node
  int64_t processes = 1; ///< processes of a node: one for each rank, or one for all its devices
  std::vector<std::string> instances;
  bool hyperpod = false; ///< whether its nodes are SageMaker HyperPod's
  NodeType node;
  bool gpus = false; ///< the job asks for accelerators
  int64_t efa = 0;   ///< devices of a node
  bool huge_pages = false;
  bool preflight = false;
  std::string copy_to{};
  int64_t shared_memory = 0;
  std::string zone;
  std::vector<JobVariable> environment{};
  std::vector<Volume> volumes;
  std::vector<std::pair<std::string, int64_t>> ports;
  double hours = 0;
  int64_t restarts = 0;
  std::string priority, gang, queue;
  std::vector<std::string> sbatch;
  std::string tensorboard;
  std::vector<std::string> fetch;
  std::string fetch_to;
  std::vector<std::string> prepare;
  std::string prepare_to;
  std::vector<std::string> prepare_options;
};

/// Whether the step is compiled before the training begins, by a job of its own.
[[nodiscard]] inline bool compiles_ahead(const Job& job) {
  return job.node.processes > 0;
}

/// From SIGTERM to the end: time to save a checkpoint.
inline constexpr int64_t kSaveSeconds = 180;

/// "2 nodes of p5.48xlarge, 8 ranks each".
[[nodiscard]] std::string nodes_text(const Job& job);

/// A name that Kubernetes takes for every object, made of a text: lower case letters, digits and
/// single dashes, a letter first, so short that controllers can put "-worker-0" behind it.
[[nodiscard]] std::string object_name(const std::string& text);

/// The job that runs a recipe as it is asked for.
///
/// `nodes`: the instances' rows, one for each of `options.instances`.
///
/// Throws:  mh::Error for a combination that no cluster runs, naming it
/// Source:  AWS, "Get started with EFA", EKS user guide; architectures/efa-cheatsheet.md of AWS's
///          samples (awslabs/awsome-distributed-ai); the CRDs of each target
[[nodiscard]] MH_API Job
make_job(const LaunchOptions& options, const std::vector<NodeType>& nodes, const RunFacts& run);

/// Variables of the devices' libraries and the network's that this job needs, in order.
[[nodiscard]] std::vector<JobVariable>
network_variables(const Job& job, const std::string& libfabric, const std::string& ofi_nccl);

} // namespace mh
