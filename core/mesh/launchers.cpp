#include "core/mesh/launchers.hpp"

#include "core/base/host_name.hpp"
#include "megahost/error.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdlib>
#include <initializer_list>
#include <optional>

namespace mh {

namespace {

/// The variables in which each launcher writes rank and address. An empty name: this launcher does
/// not set it.
struct Names {
  const char* launcher;
  const char* sign; ///< set only by this launcher
  const char *rank, *size, *local_rank, *local_size, *address, *port;
};

/// The pod's place: set by PyTorchJob and TrainJob, and by what `megahost launch` writes.
constexpr Names kPod{
    "Kubernetes",
    "PET_NNODES",
    "PET_NODE_RANK",
    "PET_NNODES",
    "",
    "",
    "PET_MASTER_ADDR",
    "PET_MASTER_PORT"};

constexpr const char* kIndexOfJob = "JOB_COMPLETION_INDEX";
/// Set by a PyTorchJob with an elasticPolicy, whose pods are workers alone and have no number.
constexpr const char* kMeetingPoint = "PET_RDZV_ENDPOINT";

constexpr std::array<Names, 6> kLaunchers{{
    {"megahost",
     "MEGAHOST_RANK",
     "MEGAHOST_RANK",
     "MEGAHOST_WORLD_SIZE",
     "MEGAHOST_LOCAL_RANK",
     "MEGAHOST_LOCAL_WORLD_SIZE",
     "MEGAHOST_MASTER_ADDR",
     "MEGAHOST_MASTER_PORT"},
    {"torchrun",
     "TORCHELASTIC_RUN_ID",
     "RANK",
     "WORLD_SIZE",
     "LOCAL_RANK",
     "LOCAL_WORLD_SIZE",
     "MASTER_ADDR",
     "MASTER_PORT"},
    {"mpirun",
     "OMPI_COMM_WORLD_RANK",
     "OMPI_COMM_WORLD_RANK",
     "OMPI_COMM_WORLD_SIZE",
     "OMPI_COMM_WORLD_LOCAL_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE",
     "MASTER_ADDR",
     "MASTER_PORT"},
    {"pmi", "PMI_RANK", "PMI_RANK", "PMI_SIZE", "", "", "MASTER_ADDR", "MASTER_PORT"},
    {"srun",
     "SLURM_STEP_ID",
     "SLURM_PROCID",
     "SLURM_STEP_NUM_TASKS",
     "SLURM_LOCALID",
     "",
     "MASTER_ADDR",
     "MASTER_PORT"},
    {"a launcher of torch.distributed",
     "RANK",
     "RANK",
     "WORLD_SIZE",
     "LOCAL_RANK",
     "",
     "MASTER_ADDR",
     "MASTER_PORT"},
}};

/// Ports of jobs without one of their own: 20000 to 39999, by job.
constexpr int kFirstPort = 20000, kPorts = 20000;

class VariableReader {
public:
  VariableReader(const Environment& environment, const Names& names)
      : environment_(environment)
      , names_(names) {}

  [[nodiscard]] int64_t number(const char* name) const {
    const auto text = environment_(name);
    if (!text) {
      throw Error(
          std::string(names_.launcher) + " started this process (" + names_.sign +
              " is set), but the environment lacks " + name,
          "start all processes with one launcher, or unset " + std::string(names_.sign),
          exit_code::communication
      );
    }
    int64_t value = -1;
    const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), value);
    if (error != std::errc{} || end != text->data() + text->size() || value < 0) {
      throw Error(
          "the environment variable " + std::string(name) + " is \"" + *text +
              "\", expected a whole number from 0",
          "it is set by " + std::string(names_.launcher) + "; unset it for a run on one rank",
          exit_code::communication
      );
    }
    return value;
  }

  /// The first that is there of what the launcher says itself, or else of what others say.
  [[nodiscard]] std::optional<int64_t>
  number(const char* name, std::initializer_list<const char*> others) const {
    if (*name != '\0') {
      return number(name);
    }
    for (const char* other : others) {
      if (environment_(other)) {
        return number(other);
      }
    }
    return std::nullopt;
  }

private:
  const Environment& environment_;
  const Names& names_;
};

int port_of_job(const Environment& environment) {
  for (const char* name : {"SLURM_JOB_ID", "OMPI_MCA_ess_base_jobid", "PMI_ID"}) {
    if (const auto text = environment(name)) {
      return kFirstPort + static_cast<int>(std::strtoul(text->c_str(), nullptr, 10) % kPorts);
    }
  }
  return kFirstPort;
}

/// "tcp://10.0.0.5,192.168.1.5:3456" of mpirun's own address: the first one.
std::string host_of_uri(const std::string& uri) {
  const size_t begin = uri.find("//");
  if (begin == std::string::npos) {
    return "";
  }
  return uri.substr(begin + 2, uri.find_first_of(",:", begin + 2) - begin - 2);
}

std::string address_of_job(const Environment& environment, int64_t size, int64_t local_size) {
  if (const auto nodes = environment("SLURM_STEP_NODELIST")) {
    return first_host(*nodes);
  }
  if (size == local_size) {
    return "127.0.0.1";
  }
  if (const auto uri = environment("OMPI_MCA_orte_hnp_uri")) {
    if (const std::string host = host_of_uri(*uri); !host.empty()) {
      return host;
    }
  }
  throw Error(
      "the processes of this run are on several machines and nothing says where rank 0 is",
      "set MASTER_ADDR to the address of rank 0's machine, and MASTER_PORT to a free port there",
      exit_code::communication
  );
}

void check(const World& world, const Names& names) {
  if (world.size < 1 || world.rank >= world.size || world.local_rank >= world.local_size) {
    throw Error(
        std::string(names.launcher) + " gives this process rank " + std::to_string(world.rank) +
            " of " + std::to_string(world.size) + " (" + names.rank + ", " + names.size +
            "), on its machine " + std::to_string(world.local_rank) + " of " +
            std::to_string(world.local_size),
        "ranks count from 0 to the size less 1",
        exit_code::communication
    );
  }
}

Found found_in(const Environment& environment, const Names& names) {
  const VariableReader reader(environment, names);
  Found found{.world = {}, .launcher = names.launcher};
  World& world = found.world;
  world.rank = reader.number(names.rank);
  world.size = reader.number(names.size);
  // Under PMI: MPICH's and Intel MPI's own, or those of a step of Slurm (srun --mpi=pmi2).
  world.local_rank =
      reader.number(names.local_rank, {"MPI_LOCALRANKID", "SLURM_LOCALID"}).value_or(world.rank);
  const auto local_size = reader.number(names.local_size, {"MPI_LOCALNRANKS"});
  const auto per_node = environment("SLURM_STEP_TASKS_PER_NODE");
  world.local_size = local_size ? *local_size
                     : per_node ? tasks_of_node(*per_node, reader.number("SLURM_NODEID"))
                                : world.size;
  check(world, names);
  if (const auto address = environment(names.address)) {
    world.master_address = *address;
    world.master_port = static_cast<int>(reader.number(names.port));
  } else {
    world.master_address = address_of_job(environment, world.size, world.local_size);
    world.master_port = port_of_job(environment);
  }
  found.agent_store = environment("TORCHELASTIC_USE_AGENT_STORE").value_or("") == "True" &&
                      std::string_view(names.launcher) == "torchrun";
  return found;
}

/// Whether the environment says which node this is, and no rank on it.
bool is_node(const Environment& environment) {
  return environment(kPod.size) && !environment("LOCAL_RANK") &&
         (environment(kPod.rank) || environment(kIndexOfJob) || environment(kMeetingPoint));
}

/// The pod of a PyTorchJob with an elasticPolicy: "tiny-worker-2" is node 2 where the pods meet at
/// "tiny-worker-0:29400".
///
/// Source: kubeflow/training-operator 1.9 pkg/controller.v1/pytorch/elastic.go
NodePlace elastic_place(const Environment& environment) {
  const auto refuse = [&](const std::string& what) {
    return Error(
        what,
        "an elasticPolicy needs rdzvBackend c10d and as many minReplicas as maxReplicas; or start "
        "ranks by torchrun --no-python, whose agents agree on how many pods there are",
        exit_code::communication
    );
  };
  const std::string point = *environment(kMeetingPoint), nodes = *environment(kPod.size);
  const std::string backend = environment("PET_RDZV_BACKEND").value_or("c10d");
  const std::string pod = environment("HOSTNAME").value_or(host_name());
  const size_t colon = nodes.find(':'), port = point.rfind(':');
  if (colon != std::string::npos && nodes.substr(0, colon) != nodes.substr(colon + 1)) {
    throw refuse(
        "this pod is one of " + nodes.substr(0, colon) + " to " + nodes.substr(colon + 1) +
        " (PET_NNODES), and nothing says of how many"
    );
  }
  const std::string first = point.substr(0, point.find_first_of(".:"));
  const size_t digits = pod.find_last_not_of("0123456789") + 1;
  const bool alike = digits < pod.size() && first == pod.substr(0, digits) + "0";
  if (backend != "c10d" || !alike || port == std::string::npos) {
    throw refuse(
        "this pod, " + pod + ", is to meet the others at " + point + " by " + backend +
        ", which does not say its number"
    );
  }
  const Environment known = [&](const std::string& name) -> std::optional<std::string> {
    return name == kPod.size      ? nodes.substr(0, colon)
           : name == kPod.rank    ? pod.substr(digits)
           : name == kPod.address ? point.substr(0, port)
           : name == kPod.port    ? point.substr(port + 1)
                                  : environment(name);
  };
  return *find_node(known);
}

} // namespace

Environment process_environment() {
  return [](const std::string& name) -> std::optional<std::string> {
    const char* value = std::getenv(name.c_str());
    return value == nullptr ? std::nullopt : std::optional<std::string>(value);
  };
}

std::optional<Found> find_world(const Environment& environment) {
  for (const Names& names : kLaunchers) {
    const bool counts_pods = std::string_view(names.sign) == "RANK" && is_node(environment);
    if (environment(names.sign) && !counts_pods) {
      return found_in(environment, names);
    }
  }
  return std::nullopt;
}

std::optional<NodePlace> find_node(const Environment& environment) {
  if (!is_node(environment) || find_world(environment)) {
    return std::nullopt;
  }
  if (!environment(kPod.rank) && !environment(kIndexOfJob)) {
    return elastic_place(environment);
  }
  const VariableReader reader(environment, kPod);
  NodePlace place;
  place.nodes = reader.number(kPod.size);
  place.node = reader.number(environment(kPod.rank) ? kPod.rank : kIndexOfJob);
  if (place.node >= place.nodes) {
    throw Error(
        "this pod is node " + std::to_string(place.node) + " of " + std::to_string(place.nodes) +
            " (" + kPod.rank + " or " + kIndexOfJob + ", " + kPod.size + ")",
        "nodes count from 0 to their number less 1",
        exit_code::communication
    );
  }
  constexpr const char* kRanks = "PET_NPROC_PER_NODE";
  const auto ranks = environment(kRanks);
  if (ranks && *ranks != "auto" && *ranks != "gpu" && *ranks != "cpu") {
    place.ranks = std::max<int64_t>(1, reader.number(kRanks));
  }
  if (place.nodes > 1) {
    const auto address = environment(kPod.address);
    if (!address) {
      throw Error(
          "this pod is one of " + std::to_string(place.nodes) + " (" + kPod.size +
              "), and nothing says where rank 0 is",
          std::string("set ") + kPod.address + " to the name of the first pod, and " + kPod.port +
              " to a free port there",
          exit_code::communication
      );
    }
    place.master_address = *address;
    place.master_port = static_cast<int>(reader.number(kPod.port));
  }
  return place;
}

std::string first_host(const std::string& node_list) {
  const size_t end = node_list.find_first_of(",[");
  std::string host = node_list.substr(0, end);
  if (end != std::string::npos && node_list[end] == '[') {
    host += node_list.substr(end + 1, node_list.find_first_of(",-]", end + 1) - end - 1);
    const size_t close = node_list.find(']', end);
    if (close != std::string::npos) {
      host += node_list.substr(close + 1, node_list.find_first_of(",[", close + 1) - close - 1);
    }
  }
  return host;
}

int64_t tasks_of_node(const std::string& tasks_per_node, int64_t node) {
  const char* at = tasks_per_node.c_str();
  for (char* end = nullptr; *at != '\0'; at = end + (*end == ',' ? 1 : 0)) {
    const int64_t tasks = std::strtol(at, &end, 10);
    int64_t nodes = 1;
    if (end[0] == '(' && end[1] == 'x') {
      nodes = std::strtol(end + 2, &end, 10);
      end += *end == ')' ? 1 : 0;
    }
    if (end == at) {
      break;
    }
    if (node < nodes) {
      return tasks;
    }
    node -= nodes;
  }
  throw Error(
      "SLURM_STEP_TASKS_PER_NODE is \"" + tasks_per_node + "\", which says nothing of this node",
      "start the processes with srun",
      exit_code::communication
  );
}

std::string world_fault(const World& world) {
  constexpr int kMostPort = 65535;
  const bool possible = world.rank >= 0 && world.rank < world.size && world.local_rank >= 0 &&
                        world.local_rank < world.local_size && world.local_size <= world.size;
  if (!possible) {
    return "rank " + std::to_string(world.rank) + " of " + std::to_string(world.size) +
           ", local rank " + std::to_string(world.local_rank) + " of " +
           std::to_string(world.local_size);
  }
  if (world.size > 1 && (world.master_port < 1 || world.master_port > kMostPort)) {
    return "one of " + std::to_string(world.size) + " which meet at port " +
           std::to_string(world.master_port);
  }
  return "";
}

} // namespace mh
