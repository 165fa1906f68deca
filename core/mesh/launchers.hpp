#pragma once
/// How a process learns its rank: from whoever started it. Each launcher is a row of one table,
/// asked in order of precedence.

#include "megahost/launcher.hpp"

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

namespace mh {

/// The value of an environment variable; nothing if it is not set.
using Environment = std::function<std::optional<std::string>(const std::string& name)>;

/// The environment of this process.
[[nodiscard]] Environment process_environment();

struct Found {
  World world;
  std::string launcher;     ///< "megahost", "torchrun", "mpirun", "pmi", "srun", a plugin's name
  bool agent_store = false; ///< the launcher's agent serves the store already: all are clients
};

/// The world that a launcher describes; nothing if none started this process. In order: our own
/// (`--nproc`), torchrun, Open MPI, PMI (MPICH, Intel MPI), a step of Slurm, whoever else sets
/// torch.distributed's variables for a rank and not for a node (`find_node`). Open MPI comes before
/// Slurm, because under sbatch its ranks see the variables of their daemon, too.
///
/// Throws:  mh::Error naming the variable that is missing or no number, or a rank outside the world
/// Source:  torch.distributed.run, Open MPI 4 mpirun(1), Slurm 22.05 srun(1)
[[nodiscard]] std::optional<Found> find_world(const Environment& environment);

/// A place that no process can have, in words: "rank 5 of 2, local rank 0 of 1". Empty: it is
/// possible.
[[nodiscard]] std::string world_fault(const World& world);

/// A node of a run whose one process starts the node's ranks itself: a pod.
struct NodePlace {
  int64_t node = 0;
  int64_t nodes = 1;
  std::optional<int64_t> ranks; ///< ranks of the node; none: the launcher leaves it open ("auto")
  std::string master_address;   ///< address of the node of rank 0, and a free port there
  int master_port = 0;
};

/// The node that this process is; nothing where no launcher says so, or where one says a rank, too.
/// PyTorchJob (with a Master) and TrainJob set PET_NNODES, PET_NODE_RANK, PET_NPROC_PER_NODE and
/// PET_MASTER_ADDR; pods of an Indexed Job or a JobSet have JOB_COMPLETION_INDEX in place of
/// PET_NODE_RANK. RANK and WORLD_SIZE of a PyTorchJob count pods, and are not read.
///
/// Throws:  mh::Error naming the variable that is missing or no number, or a node outside the run
/// Source:  kubeflow/training-operator 1.9 pkg/controller.v1/pytorch, kubeflow/trainer 2.3
[[nodiscard]] std::optional<NodePlace> find_node(const Environment& environment);

/// The first host of a Slurm node list: "n[3-7,9],m1" gives "n3".
[[nodiscard]] std::string first_host(const std::string& node_list);

/// Tasks on the node of this number in Slurm's run-length list: "2(x3),1" gives 2, 2, 2, 1.
[[nodiscard]] int64_t tasks_of_node(const std::string& tasks_per_node, int64_t node);

} // namespace mh
