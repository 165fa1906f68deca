#include "core/launch/job.hpp"

#include "core/base/text.hpp"
#include "core/launch/write.hpp"
#include "megahost/error.hpp"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <set>

namespace mh {

namespace {

constexpr size_t kLongestName = 50; // 63 less what controllers append: "-worker-0", "-recipe"

} // namespace

std::string object_name(const std::string& text) {
  std::string name;
  for (const unsigned char c : text) {
    const bool letter = std::isalnum(c) != 0;
    if (letter || (!name.empty() && name.back() != '-')) {
      name += letter ? static_cast<char>(std::tolower(c)) : '-';
    }
  }
  const auto begin =
      std::find_if(name.begin(), name.end(), [](unsigned char c) { return std::isalpha(c) != 0; });
  name.erase(name.begin(), begin);
  name = name.substr(0, kLongestName);
  while (!name.empty() && name.back() == '-') {
    name.pop_back();
  }
  return name.empty() ? "megahost" : name;
}

namespace {

std::string job_name(const LaunchOptions& options, const RunFacts& run) {
  if (!options.name.empty() && object_name(options.name) != options.name) {
    throw Error(
        "--name " + options.name + " is no name for every object of a job",
        "take up to 50 lower case letters, digits and dashes, a letter first: --name " +
            object_name(options.name)
    );
  }
  return options.name.empty() ? object_name(run.name) : options.name;
}

/// The text behind " # ", if it is a reason.
std::string reason_of(std::string& ret_text, const std::string& otherwise) {
  const size_t at = ret_text.find(" # ");
  if (at == std::string::npos) {
    return otherwise;
  }
  std::string reason = ret_text.substr(at + 3);
  ret_text.erase(at);
  return reason;
}

/// "NAME=VALUE" in its parts.
std::pair<std::string, std::string> assignment(const std::string& text, const char* option) {
  const size_t equals = text.find('=');
  if (equals == std::string::npos || equals == 0) {
    throw Error(
        std::string(option) + " " + text + " is no NAME=VALUE",
        std::string("as in ") + option +
            (option == std::string("--env") ? " NCCL_DEBUG=INFO" : " metrics=9400")
    );
  }
  return {text.substr(0, equals), text.substr(equals + 1)};
}

/// Variables by which a target says ranks: what a person sets there would start another run.
bool is_reserved(const std::string& name) {
  static constexpr std::array kNames{
      "RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "JOB_COMPLETION_INDEX"};
  return name.starts_with("PET_") || name.starts_with("MEGAHOST_RANK") ||
         std::find(kNames.begin(), kNames.end(), name) != kNames.end();
}

void add_given_variables(const LaunchOptions& options, std::vector<JobVariable>& ret_variables) {
  for (std::string text : options.environment) {
    std::string reason = reason_of(text, "given by --env");
    auto [name, value] = assignment(text, "--env");
    const bool fine = std::isdigit(static_cast<unsigned char>(name.front())) == 0 &&
                      std::all_of(name.begin(), name.end(), [](unsigned char c) {
                        return std::isalnum(c) != 0 || c == '_';
                      });
    if (!fine || is_reserved(name)) {
      throw Error(
          "--env " + name +
              (fine ? " is a variable by which processes learn their ranks" : " is no variable"),
          fine ? "the target sets it" : "names have letters, digits and _"
      );
    }
    std::erase_if(ret_variables, [&](const JobVariable& variable) {
      return variable.name == name;
    });
    ret_variables.push_back({std::move(name), std::move(value), std::move(reason)});
  }
}

constexpr std::array<std::pair<const char*, Volume::Kind>, 4> kVolumeKinds{{
    {"pvc", Volume::Kind::claim},
    {"fsx", Volume::Kind::fsx},
    {"s3", Volume::Kind::s3},
    {"host", Volume::Kind::host},
}};

/// "pvc:fsx-claim:/fsx".
Volume volume_of(const std::string& text) {
  const size_t first = text.find(':'), last = text.rfind(':');
  const std::string kind = text.substr(0, first);
  const auto* found = std::find_if(kVolumeKinds.begin(), kVolumeKinds.end(), [&](const auto& row) {
    return row.first == kind;
  });
  const std::string path = last == std::string::npos ? "" : text.substr(last + 1);
  if (found == kVolumeKinds.end() || first == last || last == first + 1 || !path.starts_with('/') ||
      path.size() < 2) {
    throw Error(
        "--volume " + text + " is no KIND:NAME:PATH",
        "as in --volume pvc:fsx-claim:/fsx: a claim that is there; fsx:NAME:PATH makes one of FSx "
        "for Lustre, s3:BUCKET:PATH one of a bucket, host:FOLDER:PATH is a folder of each node"
    );
  }
  Volume volume{found->second, text.substr(first + 1, last - first - 1), path};
  const bool folder = volume.kind == Volume::Kind::host;
  if (folder ? !volume.name.starts_with('/') : volume.name.find('/') != std::string::npos) {
    throw Error(
        "--volume " + text + ": " + volume.name + (folder ? " is no absolute path" : " is a path"),
        folder ? "name a folder of the nodes" : "name the claim or the bucket"
    );
  }
  return volume;
}

std::vector<Volume> volumes_of(const LaunchOptions& options) {
  std::vector<Volume> volumes;
  std::set<std::string> paths{"/dev/shm"};
  for (const std::string& text : options.volumes) {
    volumes.push_back(volume_of(text));
    if (!paths.insert(volumes.back().path).second) {
      throw Error(
          "--volume " + text + ": something else is at " + volumes.back().path + " already"
      );
    }
  }
  return volumes;
}

std::string plural(int64_t count, const std::string& what) {
  return std::to_string(count) + " " + what + (count == 1 ? "" : "s");
}

/// Refuses what no instance and no placement of instances has.
void require_instances(const LaunchOptions& options, const std::vector<NodeType>& nodes) {
  const NodeType& node = nodes.front();
  const std::string& name = options.instances.front();
  for (size_t i = 0; i < nodes.size(); ++i) {
    const std::string& other = options.instances[i];
    if (!nodes[i].known()) {
      throw Error(
          other + " is a machine of hardware.toml, and no instance",
          "name one with what a node has, such as p5.48xlarge; `node` in its row of "
          "presets/hardware.toml says it of machines of your own"
      );
    }
    if (nodes[i].processes > 0 && options.nodes > 1) {
      throw Error(
          "one process drives the " + plural(nodes[i].ranks_here(), "device") + " of a " + other +
              ", and those of several nodes are in no step yet: --nodes " +
              std::to_string(options.nodes),
          "take one node; `megahost plan --on " + other + " --gpus N` plans for more"
      );
    }
    if (nodes[i].efa_group != node.efa_group && options.efa != 0) {
      throw Error(
          "EFA of " + name + " cannot speak with that of " + other,
          "P4d and P4de reach one another only, other types any but those: take one type, or --efa "
          "0"
      );
    }
    if (nodes[i].accelerators != node.accelerators || nodes[i].efa != node.efa ||
        nodes[i].arch != node.arch) {
      throw Error(
          name + " and " + other + " differ in what a node has: " +
              plural(node.accelerators, "GPU") + " and " + plural(nodes[i].accelerators, "GPU") +
              ", " + plural(node.efa, "EFA device") + " and " + plural(nodes[i].efa, "EFA device") +
              ", " + node.arch + " and " + nodes[i].arch,
          "every node of a job is alike: take one type"
      );
    }
  }
}

void require_counts(const LaunchOptions& options, const NodeType& node) {
  const std::string& name = options.instances.front();
  if (options.nodes < 1) {
    throw Error("--nodes " + std::to_string(options.nodes) + " is no number of nodes");
  }
  if (options.gpus && (*options.gpus < 1 || *options.gpus > node.ranks_here())) {
    throw Error(
        "--gpus-per-node " + std::to_string(*options.gpus) + ": " + name + " has " +
            plural(node.ranks_here(), "GPU"),
        "leave it out for all of them"
    );
  }
  if (options.efa && *options.efa > node.efa) {
    throw Error(
        "--efa " + std::to_string(*options.efa) + ": " + name + " has " +
            (node.efa == 0 ? "no EFA device" : plural(node.efa, "EFA device")),
        "leave it out for all of them"
    );
  }
  const int64_t efa = options.efa.value_or(node.efa);
  if (efa > 0 && options.zones.size() > 1) {
    throw Error(
        "EFA does not leave its availability zone, and --zone names " + join(options.zones),
        "name one zone, or --efa 0 for a job over TCP"
    );
  }
}

void require_target(const LaunchOptions& options, const Target& target) {
  const auto only_kubernetes = [&](bool given, const std::string& option) {
    if (given && !target.kubernetes) {
      throw Error(
          option + " is Kubernetes's, and the target is " + options.target,
          "leave it out; --sbatch gives sbatch further options"
      );
    }
  };
  only_kubernetes(!options.gang.empty(), "--gang");
  only_kubernetes(!options.name_space.empty(), "--namespace");
  only_kubernetes(!options.priority.empty(), "--priority");
  only_kubernetes(!options.tensorboard.empty(), "--tensorboard");
  only_kubernetes(!options.ports.empty(), "--port");
  only_kubernetes(options.image.empty() && !options.volumes.empty(), "--volume without --image");
  if (options.target != "slurm" && !options.sbatch.empty()) {
    throw Error("--sbatch gives options to sbatch, and the target is " + options.target);
  }
  if (target.container && options.image.empty()) {
    throw Error(
        "target " + options.target + " runs containers, and --image names none",
        "give an image in which `megahost` is installed: --image REGISTRY/NAME:TAG"
    );
  }
  if (!options.api.empty() && options.target != "trainjob") {
    throw Error("--api is the version of Kubeflow Trainer, for --target trainjob");
  }
  const auto& versions = trainer_versions();
  if (!options.api.empty() &&
      std::find(versions.begin(), versions.end(), options.api) == versions.end()) {
    throw Error(
        "--api " + options.api + ": that version of Kubeflow Trainer is not known",
        "take " + alternatives(versions)
    );
  }
  if (options.gang == "volcano" && options.api == "2.0") {
    throw Error(
        "Kubeflow Trainer 2.0 knows no gang scheduling by Volcano",
        "--api 2.1 does, or --gang "
        "coscheduling"
    );
  }
  if (options.gang.empty() && !options.queue.empty() && target.kubernetes) {
    throw Error("--queue is one of --gang kueue or --gang volcano, and --gang is not given");
  }
  if (options.gang == "kueue" && options.queue.empty()) {
    throw Error("--gang kueue needs --queue NAME, the LocalQueue that admits the job");
  }
  if (options.gang == "coscheduling" && !options.queue.empty()) {
    throw Error("coscheduling has no queues", "leave --queue out, or take --gang kueue");
  }
}

std::vector<std::pair<std::string, int64_t>> ports_of(const LaunchOptions& options) {
  std::vector<std::pair<std::string, int64_t>> ports;
  for (const std::string& text : options.ports) {
    const auto [name, number] = assignment(text, "--port");
    int64_t port = 0;
    const char* end = number.data() + number.size();
    const auto read = std::from_chars(number.data(), end, port);
    if (read.ec != std::errc() || read.ptr != end || port < 1 || port > 65535 ||
        object_name(name) != name || name.size() > 15) {
      throw Error(
          "--port " + text + " names no port",
          "a name of up to 15 lower case letters, digits and dashes, and a number from 1 to 65535"
      );
    }
    ports.emplace_back(name, port);
  }
  return ports;
}

void require_data(const LaunchOptions& options) {
  for (const std::string& address : options.fetch) {
    const bool known = address.starts_with("https://") || address.starts_with("http://") ||
                       address.starts_with("s3://");
    if (!known || address.back() == '/') {
      throw Error(
          "--fetch " + address + " is no address of a file",
          "it begins with https://, http:// or s3:// and ends with the file's name"
      );
    }
  }
  if (options.fetch.empty() != options.fetch_to.empty()) {
    throw Error(
        options.fetch.empty() ? "--fetch-to is where --fetch puts files, and nothing is fetched"
                              : "--fetch needs --fetch-to DIR, a folder on a volume of the job"
    );
  }
  if (options.prepare.empty() != options.prepare_to.empty()) {
    throw Error(
        options.prepare.empty()
            ? "--prepare-to is where --prepare puts the corpus, and nothing is prepared"
            : "--prepare needs --prepare-to PREFIX, the corpus that the recipe's data names"
    );
  }
}

} // namespace

std::string nodes_text(const Job& job) {
  return plural(job.nodes, "node") + " of " + join(job.instances, " or ") + ", " +
         plural(job.ranks, "rank") + " each";
}

Job make_job(
    const LaunchOptions& options, const std::vector<NodeType>& nodes, const RunFacts& run
) {
  require_target(options, find_target(options.target));
  require_instances(options, nodes);
  const NodeType& node = nodes.front();
  require_counts(options, node);
  require_data(options);
  Job job{
      .target = options.target,
      .api = options.api.empty() ? trainer_versions().back() : options.api,
      .name = job_name(options, run),
      .image = options.image,
      .name_space = options.name_space,
      .run = run,
      .nodes = options.nodes,
      .ranks = options.gpus.value_or(node.ranks_here()),
      .processes = node.processes > 0 ? node.processes : options.gpus.value_or(node.ranks_here()),
      .instances = options.instances,
      .hyperpod = options.hyperpod || options.target == "hyperpod",
      .node = node,
      .gpus = run.on_gpu && node.accelerators > 0,
      .efa = options.efa.value_or(options.nodes > 1 ? node.efa : 0),
      .shared_memory = options.shared_memory,
      .zone = options.zones.size() == 1 ? options.zones.front() : "",
      .volumes = volumes_of(options),
      .ports = ports_of(options),
      .hours = options.hours,
      .restarts = options.restarts,
      .priority = options.priority,
      .gang = options.gang,
      .queue = options.queue,
      .sbatch = options.sbatch,
      .tensorboard = options.tensorboard,
      .fetch = options.fetch,
      .fetch_to = options.fetch_to,
      .prepare = options.prepare,
      .prepare_to = options.prepare_to,
      .prepare_options = options.prepare_options};
  job.preflight = options.preflight;
  job.copy_to = options.copy_to;
  job.huge_pages = options.huge_pages && job.efa > 0;
  job.environment = network_variables(job, options.libfabric, options.ofi_nccl);
  add_given_variables(options, job.environment);
  return job;
}

} // namespace mh
