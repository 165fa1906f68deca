#include "core/launch/kubernetes.hpp"

#include "core/base/text.hpp"
#include "core/launch/scripts.hpp"
#include "core/launch/yaml.hpp"

#include <algorithm>
#include <cctype>
#include <cmath>

namespace mh {

namespace {

using ValueArray = Value::Array;

constexpr const char* kRecipeFolder = "/etc/megahost";
constexpr const char* kRecipe = "/etc/megahost/recipe.toml";
constexpr const char* kRecipeVolume = "megahost-recipe";
constexpr const char* kSharedMemory = "megahost-shm";
constexpr const char* kHugePages = "5120Mi"; // pages of 2 MiB, as AWS's EKS user guide asks for
constexpr int64_t kMasterPort = 29500;
constexpr int64_t kGangSeconds = 600; // that a gang waits for its last pod

/// A number of devices in the form of a manifest.
std::string count_text(int64_t count) {
  return std::to_string(count);
}

int64_t limit_seconds(const Job& job) {
  return static_cast<int64_t>(std::ceil(3600 * job.hours));
}

Table metadata(const Job& job, const std::string& name, Table more = {}) {
  Table table{{"name", name}};
  if (!job.name_space.empty()) {
    table.set("namespace", job.name_space);
  }
  for (auto& entry : more) {
    table.set(entry.key, std::move(entry.value));
  }
  return table;
}

Table object(const char* version, const char* kind, Table meta, Table spec) {
  return {
      {"apiVersion", version},
      {"kind", kind},
      {"metadata", std::move(meta)},
      {"spec", std::move(spec)}};
}

/// The metadata of the object that a queue admits.
Table job_metadata(const Job& job, Table annotations = {}) {
  Table labels{{"app", job.name}};
  if (job.gang == "kueue") {
    labels.set("kueue.x-k8s.io/queue-name", job.queue);
  }
  Table more{{"labels", std::move(labels)}};
  if (!annotations.empty()) {
    more.set("annotations", std::move(annotations));
  }
  return metadata(job, job.name, std::move(more));
}

std::string documents(const std::vector<Table>& tables, const std::string& comment) {
  std::string text = comment;
  for (const Table& table : tables) {
    text += (text == comment ? "" : "---\n") + yaml_text(table);
  }
  return text;
}

/// "/a/data" is "a-data": paths differ, so names do.
std::string volume_name(const Volume& volume) {
  return object_name("v" + volume.path);
}

std::string claim_name(const Job& job, const Volume& volume) {
  return volume.kind == Volume::Kind::s3 ? object_name(job.name + "-" + volume.name) : volume.name;
}

/// The claims that a job makes, and what stands behind them.
std::vector<Table> volume_objects(const Job& job) {
  std::vector<Table> objects;
  for (const Volume& volume : job.volumes) {
    const std::string claim = claim_name(job, volume);
    const auto claim_of = [&](const std::string& storage_class, Table more) {
      Table spec{
          {"accessModes", ValueArray{"ReadWriteMany"}},
          {"storageClassName", storage_class},
          {"resources", Table{{"requests", Table{{"storage", "1200Gi"}}}}}};
      for (auto& entry : more) {
        spec.set(entry.key, std::move(entry.value));
      }
      return object("v1", "PersistentVolumeClaim", metadata(job, claim), std::move(spec));
    };
    if (volume.kind == Volume::Kind::fsx) {
      objects.push_back(claim_of("fsx-sc", {}));
    } else if (volume.kind == Volume::Kind::s3) {
      Table spec{
          {"capacity", Table{{"storage", "1200Gi"}}},
          {"accessModes", ValueArray{"ReadWriteMany"}},
          {"storageClassName", ""},
          {"claimRef",
           Table{
               {"namespace", job.name_space.empty() ? "default" : job.name_space},
               {"name", claim}}},
          {"mountOptions", ValueArray{"allow-delete", "allow-other"}},
          {"csi",
           Table{
               {"driver", "s3.csi.aws.com"},
               {"volumeHandle", claim},
               {"volumeAttributes", Table{{"bucketName", volume.name}}}}}};
      objects.push_back(object("v1", "PersistentVolume", Table{{"name", claim}}, std::move(spec)));
      objects.push_back(claim_of("", Table{{"volumeName", claim}}));
    }
  }
  return objects;
}

Table recipe_object(const Job& job) {
  return {
      {"apiVersion", "v1"},
      {"kind", "ConfigMap"},
      {"metadata", metadata(job, job.name + "-recipe")},
      {"data", Table{{"recipe.toml", job.run.recipe}}}};
}

ValueArray environment(const std::vector<JobVariable>& variables) {
  ValueArray rows;
  for (const JobVariable& variable : variables) {
    Table row{{"name", variable.name}, {"value", variable.value}};
    add_comment(row, variable.reason);
    rows.emplace_back(std::move(row));
  }
  return rows;
}

Table mount(const std::string& name, const std::string& path, bool read_only = false) {
  Table table{{"name", name}, {"mountPath", path}};
  if (read_only) {
    table.set("readOnly", true);
  }
  return table;
}

/// The properties of a pod in addition to the job's volumes.
struct Own {
  bool shared_memory, recipe;
};

constexpr Own kTrains{true, true};

ValueArray volume_mounts(const Job& job, Own own, bool read_only = false) {
  ValueArray mounts;
  if (own.shared_memory) {
    mounts.emplace_back(mount(kSharedMemory, "/dev/shm"));
  }
  if (own.recipe) {
    mounts.emplace_back(mount(kRecipeVolume, kRecipeFolder, /*read_only=*/true));
  }
  for (const Volume& volume : job.volumes) {
    mounts.emplace_back(mount(volume_name(volume), volume.path, read_only));
  }
  return mounts;
}

ValueArray pod_volumes(const Job& job, Own own) {
  ValueArray volumes;
  if (own.shared_memory) {
    Table memory{{"medium", "Memory"}};
    if (job.shared_memory > 0) {
      memory.set("sizeLimit", count_text(job.shared_memory) + "Gi");
    }
    Table shared{{"name", kSharedMemory}};
    add_comment(shared, "NCCL and ranks of a node share memory here; a container has 64 MiB of it");
    shared.set("emptyDir", std::move(memory));
    volumes.emplace_back(std::move(shared));
  }
  if (own.recipe) {
    volumes.emplace_back(Table{
        {"name", kRecipeVolume}, {"configMap", Table{{"name", job.name + "-recipe"}}}});
  }
  for (const Volume& volume : job.volumes) {
    Table row{{"name", volume_name(volume)}};
    if (volume.kind == Volume::Kind::host) {
      row.set("hostPath", Table{{"path", volume.name}});
    } else {
      row.set("persistentVolumeClaim", Table{{"claimName", claim_name(job, volume)}});
    }
    volumes.emplace_back(std::move(row));
  }
  return volumes;
}

/// Devices: requests and limits are the same.
Table resources(const Job& job) {
  Table devices;
  if (job.gpus) {
    const int64_t all = job.node.processes > 0 ? job.node.accelerators : job.ranks;
    devices.set(job.node.resource, count_text(all));
  }
  if (job.efa > 0) {
    devices.set("vpc.amazonaws.com/efa", count_text(job.efa));
    add_comment(
        devices,
        "of " + count_text(job.node.efa) + ", " + count_text(job.node.gbit_s) + " Gbit/s" +
            (job.node.rdma == "none" ? "" : ", RDMA " + job.node.rdma)
    );
  }
  if (job.huge_pages) {
    devices.set("hugepages-2Mi", kHugePages);
    add_comment(devices, "buffers of libfabric's EFA provider");
  }
  if (devices.empty()) {
    return {};
  }
  Table requests = devices;
  if (job.huge_pages) {
    requests.set("memory", "8000Mi");
    add_comment(requests, "huge pages are given only next to memory or cores");
  }
  Table all{{"requests", std::move(requests)}, {"limits", std::move(devices)}};
  if (job.node.clique > 0 && job.nodes > 1) {
    all.set("claims", ValueArray{Table{{"name", "imex"}}});
  }
  return all;
}

/// The status of a pod that failed ends with its last lines, which are megahost's error.
void tell_last_lines(Table& ret_container) {
  ret_container.set("terminationMessagePolicy", "FallbackToLogsOnError");
}

Table container(
    const Job& job, const std::string& name, const std::vector<JobVariable>& variables
) {
  ValueArray command;
  for (const std::string& word : run_command(job, kRecipe)) {
    command.emplace_back(word);
  }
  Table table{{"name", name}, {"image", job.image}, {"command", std::move(command)}};
  if (!variables.empty()) {
    table.set("env", environment(variables));
  }
  if (!job.ports.empty()) {
    ValueArray ports;
    for (const auto& [port, number] : job.ports) {
      ports.emplace_back(Table{{"name", port}, {"containerPort", number}});
    }
    table.set("ports", std::move(ports));
  }
  if (Table needs = resources(job); !needs.empty()) {
    table.set("resources", std::move(needs));
  }
  table.set("volumeMounts", volume_mounts(job, kTrains));
  tell_last_lines(table);
  return table;
}

/// Restricts the nodes on which pods may run.
void place(const Job& job, Table& ret_spec) {
  const auto instance = [&](const std::string& name) { return (job.hyperpod ? "ml." : "") + name; };
  Table selector;
  if (job.instances.size() == 1) {
    selector.set("node.kubernetes.io/instance-type", instance(job.instances.front()));
  }
  if (job.node.arch != "amd64") {
    selector.set("kubernetes.io/arch", job.node.arch);
  }
  if (job.hyperpod) {
    selector.set("sagemaker.amazonaws.com/node-health-status", "Schedulable");
    add_comment(selector, "not on nodes that HyperPod's checks doubt");
  }
  if (!job.zone.empty()) {
    selector.set("topology.kubernetes.io/zone", job.zone);
  }
  if (!selector.empty()) {
    ret_spec.set("nodeSelector", std::move(selector));
  }
  Table affinity;
  if (job.instances.size() > 1) {
    ValueArray names;
    for (const std::string& name : job.instances) {
      names.emplace_back(instance(name));
    }
    const Table term{
        {"key", "node.kubernetes.io/instance-type"}, {"operator", "In"}, {"values", names}};
    affinity.set(
        "nodeAffinity",
        Table{
            {"requiredDuringSchedulingIgnoredDuringExecution",
             Table{
                 {"nodeSelectorTerms", ValueArray{Table{{"matchExpressions", ValueArray{term}}}}}}}}
    );
  }
  ValueArray together;
  const auto same = [&](const char* topology, const std::string& why) {
    Table term{{"topologyKey", topology}};
    add_comment(term, why);
    term.set("labelSelector", Table{{"matchLabels", Table{{"app", job.name}}}});
    together.emplace_back(std::move(term));
  };
  if (job.nodes > 1 && job.efa > 0 && job.zone.empty()) {
    same("topology.kubernetes.io/zone", "EFA does not leave its availability zone");
  }
  if (job.nodes > 1 && job.node.clique > 0 && job.nodes <= job.node.clique) {
    same("nvidia.com/gpu.clique", "nodes that NVLink joins");
  }
  if (!together.empty()) {
    affinity.set(
        "podAffinity",
        Table{{"requiredDuringSchedulingIgnoredDuringExecution", std::move(together)}}
    );
  }
  if (!affinity.empty()) {
    ret_spec.set("affinity", std::move(affinity));
  }
  if (job.gpus) {
    ret_spec.set(
        "tolerations",
        ValueArray{
            Table{{"key", job.node.resource}, {"operator", "Exists"}, {"effect", "NoSchedule"}}}
    );
  }
}

/// The pod of one node. `restart`: empty where the target says it elsewhere.
Table pod_spec(const Job& job, Table container, const std::string& restart) {
  Table spec;
  if (!restart.empty()) {
    spec.set("restartPolicy", restart);
  }
  spec.set("terminationGracePeriodSeconds", kSaveSeconds);
  add_comment(spec, "SIGTERM saves a checkpoint");
  if (!job.priority.empty()) {
    spec.set("priorityClassName", job.priority);
  }
  place(job, spec);
  if (job.node.clique > 0 && job.nodes > 1) {
    spec.set(
        "resourceClaims",
        ValueArray{Table{{"name", "imex"}, {"resourceClaimTemplateName", job.name + "-imex"}}}
    );
  }
  spec.set("containers", ValueArray{std::move(container)});
  spec.set("volumes", pod_volumes(job, kTrains));
  return spec;
}

Table pod_template(const Job& job, Table spec, Table metadata_more = {}) {
  Table labels{{"app", job.name}};
  if (const Value* more = metadata_more.find("labels")) {
    for (const auto& entry : more->as_table()) {
      labels.set(entry.key, entry.value);
    }
  }
  metadata_more.set("labels", std::move(labels));
  return {{"metadata", std::move(metadata_more)}, {"spec", std::move(spec)}};
}

/// The objects that a job needs next to it: its recipe, claims, and for GPUs that NVLink joins over
/// nodes the domain of their memory.
std::vector<Table> surroundings(const Job& job) {
  std::vector<Table> objects{recipe_object(job)};
  for (Table& volume : volume_objects(job)) {
    objects.push_back(std::move(volume));
  }
  if (job.node.clique > 0 && job.nodes > 1) {
    objects.push_back(object(
        "resource.nvidia.com/v1beta1",
        "ComputeDomain",
        metadata(job, job.name),
        Table{
            {"numNodes", job.nodes},
            {"channel", Table{{"resourceClaimTemplate", Table{{"name", job.name + "-imex"}}}}}}
    ));
  }
  return objects;
}

/// Volcano's and coscheduling's PodGroup, for targets that make none themselves.
void add_pod_group(
    const Job& job, std::vector<Table>& ret_objects, Table& ret_pod, Table& ret_metadata
) {
  if (job.gang == "volcano") {
    Table spec{{"minMember", job.nodes}};
    if (!job.queue.empty()) {
      spec.set("queue", job.queue);
    }
    if (!job.priority.empty()) {
      spec.set("priorityClassName", job.priority);
    }
    ret_objects.push_back(object(
        "scheduling.volcano.sh/v1beta1", "PodGroup", metadata(job, job.name), std::move(spec)
    ));
    ret_pod.set("schedulerName", "volcano");
    ret_metadata.set("annotations", Table{{"scheduling.k8s.io/group-name", job.name}});
  } else if (job.gang == "coscheduling") {
    ret_objects.push_back(object(
        "scheduling.x-k8s.io/v1alpha1",
        "PodGroup",
        metadata(job, job.name),
        Table{{"minMember", job.nodes}, {"scheduleTimeoutSeconds", kGangSeconds}}
    ));
    ret_pod.set("schedulerName", "scheduler-plugins-scheduler");
    ret_metadata.set("labels", Table{{"scheduling.x-k8s.io/pod-group", job.name}});
  }
}

/// `runPolicy` of Kubeflow's first generation.
Table run_policy(const Job& job, int64_t pods) {
  Table policy{{"cleanPodPolicy", "None"}};
  add_comment(policy, "logs of pods that have ended stay");
  policy.set("backoffLimit", job.restarts);
  if (job.hours > 0) {
    policy.set("activeDeadlineSeconds", limit_seconds(job));
  }
  if (job.gang == "volcano" || job.gang == "coscheduling") {
    Table scheduling{{"minAvailable", pods}};
    if (!job.queue.empty()) {
      scheduling.set("queue", job.queue);
    }
    if (!job.priority.empty()) {
      scheduling.set("priorityClass", job.priority);
    }
    scheduling.set("scheduleTimeoutSeconds", kGangSeconds);
    policy.set("schedulingPolicy", std::move(scheduling));
  }
  return policy;
}

JobFile train_file(const Job& job, const std::vector<Table>& objects) {
  const std::string comment = "# " + job.run.name + ": " + nodes_text(job) + "\n";
  return {"train.yaml", documents(objects, comment)};
}

/// The variables by which a pod of a plain Job learns its place; its index comes from the kubelet.
std::vector<JobVariable> with_place(const Job& job, const std::string& first_pod) {
  std::vector<JobVariable> variables{
      {"PET_NNODES", count_text(job.nodes), "nodes of the run; JOB_COMPLETION_INDEX says which"},
      {"PET_NPROC_PER_NODE",
       count_text(job.processes),
       "processes that megahost starts in each pod"},
      {"PET_MASTER_ADDR", first_pod, "the pod of rank 0"},
      {"PET_MASTER_PORT", count_text(kMasterPort), "where its store listens"}};
  variables.insert(variables.end(), job.environment.begin(), job.environment.end());
  return variables;
}

/// `spec` of a Job with a pod for each node.
Table indexed_spec(const Job& job, int64_t restarts, Table pod) {
  Table spec{
      {"completionMode", "Indexed"},
      {"completions", job.nodes},
      {"parallelism", job.nodes},
      {"backoffLimit", restarts}};
  spec.set("template", std::move(pod));
  return spec;
}

} // namespace

std::vector<JobFile> write_pytorchjob(const Job& job, const std::string& /*folder*/) {
  // The webhook wants a container of this name; ranks are PET_NODE_RANK's.
  const Table pod =
      pod_template(job, pod_spec(job, container(job, "pytorch", job.environment), ""));
  const auto replicas = [&](int64_t count) {
    return Table{{"replicas", count}, {"restartPolicy", "OnFailure"}, {"template", pod}};
  };
  Table specs{{"Master", replicas(1)}};
  if (job.nodes > 1) {
    specs.set("Worker", replicas(job.nodes - 1));
  }
  Table annotations;
  if (job.hyperpod) {
    annotations.set("sagemaker.amazonaws.com/enable-job-auto-resume", "true");
    annotations.set("sagemaker.amazonaws.com/job-max-retry-count", count_text(job.restarts));
  }
  Table spec{{"nprocPerNode", count_text(job.processes)}};
  add_comment(spec, "ranks that megahost starts in each pod");
  spec.set("runPolicy", run_policy(job, job.nodes));
  spec.set("pytorchReplicaSpecs", std::move(specs));
  std::vector<Table> objects = surroundings(job);
  objects.push_back(object(
      "kubeflow.org/v1", "PyTorchJob", job_metadata(job, std::move(annotations)), std::move(spec)
  ));
  return {train_file(job, objects)};
}

std::vector<JobFile> write_hyperpodjob(const Job& job, const std::string& /*folder*/) {
  // The operator speaks to an agent in each pod, which starts the ranks and starts them again.
  constexpr int64_t kAgentPort = 8080;
  std::vector<JobVariable> variables{
      {"NNODES",
       count_text(job.nodes),
       "HyperPod's agent reads it before the operator has called"}};
  variables.insert(variables.end(), job.environment.begin(), job.environment.end());
  Table one = container(job, "pytorch", variables);
  ValueArray command{
      "hyperpodrun",
      "--nnodes=" + count_text(job.nodes),
      "--nproc-per-node=" + count_text(job.processes),
      "--shutdown-timeout=" + count_text(kSaveSeconds),
      "--log-dir=/tmp/hyperpod",
      "--tee=3",
      "--no-python"};
  for (const std::string& word : run_command(job, kRecipe)) {
    command.emplace_back(word);
  }
  one.set("command", std::move(command));
  ValueArray ports{Table{{"name", "agent"}, {"containerPort", kAgentPort}}};
  for (const auto& [port, number] : job.ports) {
    ports.emplace_back(Table{{"name", port}, {"containerPort", number}});
  }
  one.set("ports", std::move(ports));
  std::vector<Table> objects = surroundings(job);
  Table pod = pod_spec(job, std::move(one), "");
  Table meta;
  add_pod_group(job, objects, pod, meta);
  Table policy{{"cleanPodPolicy", "None"}};
  add_comment(policy, "logs of pods that have ended stay");
  policy.set("jobMaxRetryCount", job.restarts);
  if (job.hours > 0) {
    policy.set("activeDeadlineSeconds", limit_seconds(job));
  }
  Table spec{{"nprocPerNode", count_text(job.processes)}, {"runPolicy", std::move(policy)}};
  spec.set(
      "replicaSpecs",
      ValueArray{Table{
          {"name", "pods"},
          {"replicas", job.nodes},
          {"template", pod_template(job, std::move(pod), std::move(meta))}}}
  );
  objects.push_back(
      object("sagemaker.amazonaws.com/v1", "HyperPodPyTorchJob", job_metadata(job), std::move(spec))
  );
  return {train_file(job, objects)};
}

std::vector<JobFile> write_trainjob(const Job& job, const std::string& /*folder*/) {
  constexpr const char* kVersion = "trainer.kubeflow.org/v1alpha1";
  // The runtime's part has the names and the label by which the controller finds it.
  Table node = container(job, "node", {});
  Value needs = Table{};
  if (const Value* given = node.find("resources")) {
    needs = *given;
    node.erase("resources");
  }
  Table policy{{"numNodes", job.nodes}, {"torch", Table{}}};
  Table replicated{
      {"name", "node"},
      {"template",
       Table{
           {"metadata",
            Table{{"labels", Table{{"trainer.kubeflow.org/trainjob-ancestor-step", "trainer"}}}}},
           {"spec",
            Table{
                {"backoffLimit", 0},
                {"template", pod_template(job, pod_spec(job, std::move(node), "Never"))}}}}}};
  Table runtime{{"mlPolicy", std::move(policy)}};
  if (job.gang == "volcano") {
    runtime.set("podGroupPolicy", Table{{"volcano", Table{}}});
  } else if (job.gang == "coscheduling") {
    runtime.set(
        "podGroupPolicy", Table{{"coscheduling", Table{{"scheduleTimeoutSeconds", kGangSeconds}}}}
    );
  }
  Table set_spec{{"replicatedJobs", ValueArray{std::move(replicated)}}};
  if (job.restarts > 0) {
    set_spec.set("failurePolicy", Table{{"maxRestarts", job.restarts}});
  }
  Table set_template{{"spec", std::move(set_spec)}};
  if (job.gang == "volcano" && !job.queue.empty()) {
    set_template = Table{
        {"metadata",
         Table{{"annotations", Table{{"scheduling.volcano.sh/queue-name", job.queue}}}}},
        {"spec", *set_template.find("spec")}};
  }
  runtime.set("template", std::move(set_template));

  ValueArray command;
  for (const std::string& word : run_command(job, kRecipe)) {
    command.emplace_back(word);
  }
  Table trainer{{"image", job.image}, {"command", std::move(command)}};
  trainer.set("numNodes", job.nodes);
  trainer.set("numProcPerNode", job.processes);
  add_comment(trainer, "ranks that megahost starts in each pod");
  if (!job.environment.empty()) {
    trainer.set("env", environment(job.environment));
  }
  if (!needs.as_table().empty()) {
    trainer.set("resourcesPerNode", std::move(needs));
  }
  Table spec{
      {"runtimeRef",
       Table{
           {"apiGroup", "trainer.kubeflow.org"}, {"kind", "TrainingRuntime"}, {"name", job.name}}},
      {"trainer", std::move(trainer)}};
  const bool limited = job.api != "2.0" && job.api != "2.1"; // its API has the field
  if (job.hours > 0 && limited) {
    spec.set("activeDeadlineSeconds", limit_seconds(job));
  }
  std::vector<Table> objects = surroundings(job);
  objects.push_back(object(kVersion, "TrainingRuntime", metadata(job, job.name), std::move(runtime))
  );
  objects.push_back(object(kVersion, "TrainJob", job_metadata(job), std::move(spec)));
  return {train_file(job, objects)};
}

std::vector<JobFile> write_indexed_job(const Job& job, const std::string& /*folder*/) {
  std::vector<Table> objects = surroundings(job);
  Table pod = pod_spec(
      job, container(job, "megahost", with_place(job, job.name + "-0." + job.name)), "Never"
  );
  if (job.nodes > 1) {
    pod.set("subdomain", job.name);
    Table service{
        {"clusterIP", "None"},
        {"publishNotReadyAddresses", true},
        {"selector", Table{{"job-name", job.name}}}};
    objects.push_back(object("v1", "Service", metadata(job, job.name), std::move(service)));
  }
  Table meta;
  add_pod_group(job, objects, pod, meta);
  // Pods end together when one fails, and each of them counts.
  Table spec = indexed_spec(
      job, job.restarts * job.nodes, pod_template(job, std::move(pod), std::move(meta))
  );
  if (job.hours > 0) {
    spec.set("activeDeadlineSeconds", limit_seconds(job));
  }
  objects.push_back(object("batch/v1", "Job", job_metadata(job), std::move(spec)));
  return {train_file(job, objects)};
}

std::vector<JobFile> write_jobset(const Job& job, const std::string& /*folder*/) {
  std::vector<Table> objects = surroundings(job);
  Table pod = pod_spec(
      job, container(job, "megahost", with_place(job, job.name + "-node-0-0." + job.name)), "Never"
  );
  Table meta;
  add_pod_group(job, objects, pod, meta);
  Table node = indexed_spec(job, 0, pod_template(job, std::move(pod), std::move(meta)));
  if (job.hours > 0) {
    node.set("activeDeadlineSeconds", limit_seconds(job));
  }
  Table spec{
      {"network", Table{{"enableDNSHostnames", true}, {"publishNotReadyAddresses", true}}},
      {"failurePolicy", Table{{"maxRestarts", job.restarts}}},
      {"replicatedJobs",
       ValueArray{Table{
           {"name", "node"}, {"replicas", 1}, {"template", Table{{"spec", std::move(node)}}}}}}};
  objects.push_back(object("jobset.x-k8s.io/v1alpha2", "JobSet", job_metadata(job), std::move(spec))
  );
  return {train_file(job, objects)};
}

std::vector<JobFile> write_mpijob(const Job& job, const std::string& /*folder*/) {
  // Ranks are started by ssh and see no variable of their pod: mpirun hands them on.
  std::vector<JobVariable> handed{
      {"MASTER_ADDR", job.name + "-worker-0." + job.name, ""},
      {"MASTER_PORT", count_text(kMasterPort), ""}};
  handed.insert(handed.end(), job.environment.begin(), job.environment.end());
  ValueArray command{
      "mpirun",
      "--allow-run-as-root",
      "-np",
      count_text(job.nodes * job.processes),
      "--bind-to",
      "none"};
  for (const JobVariable& variable : handed) {
    command.emplace_back("-x");
    command.emplace_back(variable.name + "=" + variable.value);
  }
  for (const std::string& word : run_command(job, kRecipe)) {
    command.emplace_back(word);
  }
  Table launcher{{"name", "launcher"}, {"image", job.image}};
  for (const JobVariable& variable : job.environment) {
    add_comment(launcher, variable.name + ": " + variable.reason);
  }
  launcher.set("command", std::move(command));
  tell_last_lines(launcher);
  Table worker = container(job, "worker", {});
  worker.set("command", ValueArray{"/usr/sbin/sshd", "-De"});
  const auto replicas = [&](int64_t count, Table spec) {
    return Table{
        {"replicas", count},
        {"restartPolicy", "OnFailure"},
        {"template", pod_template(job, std::move(spec))}};
  };
  Table spec{{"slotsPerWorker", job.processes}};
  spec.set("runPolicy", run_policy(job, job.nodes + 1));
  spec.set(
      "mpiReplicaSpecs",
      Table{
          {"Launcher", replicas(1, Table{{"containers", ValueArray{std::move(launcher)}}})},
          {"Worker", replicas(job.nodes, pod_spec(job, std::move(worker), ""))}}
  );
  std::vector<Table> objects = surroundings(job);
  objects.push_back(object("kubeflow.org/v2beta1", "MPIJob", job_metadata(job), std::move(spec)));
  return {train_file(job, objects)};
}

namespace {

/// A Job on one pod without devices.
JobFile data_job(const Job& job, const std::string& part, ValueArray command, bool reads_recipe) {
  const Own own{false, reads_recipe};
  Table work{{"name", part}, {"image", job.image}, {"command", std::move(command)}};
  work.set("volumeMounts", volume_mounts(job, own));
  Table pod{{"restartPolicy", "Never"}, {"containers", ValueArray{std::move(work)}}};
  pod.set("volumes", pod_volumes(job, own));
  std::vector<Table> objects = volume_objects(job);
  if (reads_recipe) {
    objects.push_back(recipe_object(job));
  }
  objects.push_back(object(
      "batch/v1",
      "Job",
      metadata(job, job.name + "-" + part),
      Table{{"backoffLimit", job.restarts}, {"template", Table{{"spec", std::move(pod)}}}}
  ));
  return {part + ".yaml", documents(objects, "")};
}

/// A Job that compiles the step on one node, with its devices.
JobFile compile_job(const Job& job) {
  ValueArray command;
  for (const std::string& word : compile_command(kRecipe, "/tmp/program")) {
    command.emplace_back(word);
  }
  Table work = container(job, "compile", job.environment);
  work.set("command", std::move(command));
  std::vector<Table> objects = surroundings(job);
  objects.push_back(object(
      "batch/v1",
      "Job",
      metadata(job, job.name + "-compile"),
      Table{
          {"backoffLimit", job.restarts},
          {"template", pod_template(job, pod_spec(job, std::move(work), "Never"))}}
  ));
  return {
      "compile.yaml",
      documents(objects, "# Before train.yaml: device.cache keeps what it compiles.\n")};
}

/// TensorBoard over the run's folder.
JobFile tensorboard(const Job& job) {
  constexpr int64_t kPort = 6006;
  constexpr Own kNothing{false, false};
  const std::string name = job.name + "-tensorboard";
  const Table labels{{"app", name}};
  Table shown{{"name", "tensorboard"}, {"image", job.tensorboard}};
  shown.set(
      "command",
      ValueArray{
          "tensorboard",
          "--bind_all",
          "--port=" + std::to_string(kPort),
          "--logdir=" + job.run.run_folder}
  );
  shown.set("ports", ValueArray{Table{{"name", "http"}, {"containerPort", kPort}}});
  shown.set("volumeMounts", volume_mounts(job, kNothing, /*read_only=*/true));
  Table pod{{"containers", ValueArray{std::move(shown)}}};
  pod.set("volumes", pod_volumes(job, kNothing));
  Table replica{{"metadata", Table{{"labels", labels}}}};
  replica.set("spec", std::move(pod));
  Table deployment{{"replicas", 1}, {"selector", Table{{"matchLabels", labels}}}};
  deployment.set("template", std::move(replica));
  Table service{{"selector", labels}};
  service.set(
      "ports", ValueArray{Table{{"name", "http"}, {"port", kPort}, {"targetPort", "http"}}}
  );
  return {
      "tensorboard.yaml",
      documents(
          {object("apps/v1", "Deployment", metadata(job, name), std::move(deployment)),
           object("v1", "Service", metadata(job, name), std::move(service))},
          ""
      )};
}

} // namespace

std::vector<JobFile> write_data_jobs(const Job& job) {
  std::vector<JobFile> files;
  if (!job.fetch.empty()) {
    files.push_back(
        data_job(job, "getdata", {"/bin/sh", "-euc", fetch_lines(job)}, /*reads_recipe=*/false)
    );
  }
  if (!job.prepare.empty()) {
    ValueArray command;
    for (const std::string& word : prepare_command(job, kRecipe)) {
      command.emplace_back(word);
    }
    files.push_back(data_job(job, "prepdata", std::move(command), /*reads_recipe=*/true));
  }
  if (compiles_ahead(job)) {
    files.push_back(compile_job(job));
  }
  if (!job.tensorboard.empty()) {
    files.push_back(tensorboard(job));
  }
  return files;
}

} // namespace mh
