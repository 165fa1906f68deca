// The job of an instance, and what no cluster runs.

#include "core/launch/job.hpp"

#include "core/launch/write.hpp"
#include "tests/formats/refusal.hpp"

#include <doctest/doctest.h>

#include <algorithm>

using namespace mh;
using mh::test::contains;

namespace {

const NodeType kP5{.accelerators = 8, .efa = 32, .rdma = "write", .gbit_s = 3200};
const NodeType kP4{.accelerators = 8, .efa = 4, .rdma = "read", .efa_group = "p4", .gbit_s = 400};
const NodeType kG5{.accelerators = 1, .gbit_s = 10};
const NodeType kTrainium{
    .accelerators = 16,
    .resource = "aws.amazon.com/neuron",
    .ranks = 32,
    .processes = 1,
    .device = "neuron",
    .efa = 8,
    .rdma = "write"};
const NodeType kGb200{
    .accelerators = 4, .efa = 4, .rdma = "write", .gbit_s = 1600, .arch = "arm64", .clique = 18};

LaunchOptions asked(const std::string& target = "pytorchjob") {
  LaunchOptions options;
  options.target = target;
  options.nodes = 2;
  options.instances = {"p5.48xlarge"};
  options.image = target == "slurm" || target == "torchrun" ? "" : "image:1";
  return options;
}

RunFacts run() {
  return {.name = "Tiny run", .recipe = "name = \"tiny\"\n", .run_folder = "/fsx/runs/tiny"};
}

Job job(const LaunchOptions& options, const NodeType& node = kP5) {
  return make_job(options, {node}, run());
}

std::string why(const LaunchOptions& options, const std::vector<NodeType>& nodes = {kP5}) {
  return mh::test::refusal([&] { static_cast<void>(make_job(options, nodes, run())); });
}

std::string names(const Job& job) {
  std::string text;
  for (const JobVariable& variable : job.environment) {
    CHECK_FALSE(variable.reason.empty());
    text += variable.name + "=" + variable.value + " ";
  }
  return text;
}

std::string train(const Job& job) {
  return write_job(job, "out").back().text;
}

} // namespace

TEST_CASE("a job takes what its instance has") {
  const Job whole = job(asked());
  CHECK(whole.name == "tiny-run");
  CHECK(whole.ranks == 8);
  CHECK(whole.efa == 32);
  CHECK(whole.gpus);
  CHECK(whole.huge_pages);
  LaunchOptions options = asked();
  options.gpus = 4;
  options.efa = 16;
  CHECK(job(options).ranks == 4);
  CHECK(job(options).efa == 16);
  options = asked();
  options.nodes = 1; // nothing leaves the node
  CHECK(job(options).efa == 0);
  CHECK_FALSE(job(options).huge_pages);
  CHECK(job(options).environment.empty());
}

TEST_CASE("variables follow from the devices and the versions, each with its reason") {
  CHECK(names(job(asked())) == "NCCL_SOCKET_IFNAME=^docker,lo,veth ");
  LaunchOptions options = asked();
  options.huge_pages = false;
  CHECK(names(job(options)) == "FI_EFA_USE_HUGE_PAGE=0 NCCL_SOCKET_IFNAME=^docker,lo,veth ");
  options = asked();
  options.libfabric = "1.17.1amzn2.0";
  CHECK(names(job(options)) == "FI_EFA_USE_DEVICE_RDMA=1 NCCL_SOCKET_IFNAME=^docker,lo,veth ");
  options.ofi_nccl = "1.5.0";
  CHECK(
      names(job(options)) == "FI_PROVIDER=efa NCCL_PROTO=simple FI_EFA_USE_DEVICE_RDMA=1 "
                             "NCCL_SOCKET_IFNAME=^docker,lo,veth "
  );
  options.libfabric = "1.18";
  options.ofi_nccl = "1.7";
  CHECK(names(job(options)) == "NCCL_SOCKET_IFNAME=^docker,lo,veth ");
  options.ofi_nccl = "1.5";
  options.efa = 0; // TCP: EFA's are of no use
  CHECK(names(job(options)) == "NCCL_SOCKET_IFNAME=^docker,lo,veth ");
  options.environment = {"NCCL_SOCKET_IFNAME=eth0", "NCCL_DEBUG=INFO # rings"};
  CHECK(job(options).environment.back().reason == "rings");
  CHECK(names(job(options)) == "NCCL_SOCKET_IFNAME=eth0 NCCL_DEBUG=INFO ");
  // On the processor there is no NCCL.
  RunFacts on_cpu = run();
  on_cpu.on_gpu = false;
  CHECK(names(make_job(asked(), {kP5}, on_cpu)).empty());
}

TEST_CASE("one process drives the devices of a node that runs programs, which are compiled before"
) {
  for (const char* target : {"slurm", "job", "torchrun"}) {
    CAPTURE(target);
    LaunchOptions options = asked(target);
    options.nodes = 1;
    options.instances = {"trn1.32xlarge"};
    RunFacts facts = run();
    CHECK(
        names(make_job(options, {kTrainium}, facts)) ==
        "NEURON_CC_FLAGS=--model-type=transformer NEURON_RT_EXEC_TIMEOUT=600 "
    );
    facts.rounds = true;
    const Job made = make_job(options, {kTrainium}, facts);
    CHECK(contains(names(made), "ROUNDING_EN=1 NEURON_RT_STOCHASTIC_ROUNDING_SEED=0 "));
    CHECK(made.ranks == 32);
    CHECK(made.processes == 1);
    const auto files = write_job(made, "out");
    const auto compile = std::ranges::find_if(files, [](const JobFile& file) {
      return file.name.starts_with("compile.");
    });
    REQUIRE(compile != files.end());
    const std::string& text = files.back().text;
    for (const char* variable : {"NEURON_CC_FLAGS", "NEURON_RT_STOCHASTIC_ROUNDING_EN"}) {
      CHECK(contains(compile->text, variable));
      CHECK(contains(text, variable));
    }
    CHECK(contains(compile->text, "--compile"));
    CHECK(files.back().name.starts_with("train."));
    if (target == std::string("slurm")) {
      CHECK(contains(text, "--ntasks-per-node=1\n"));
      CHECK(contains(compile->text, "megahost program out/recipe.toml -o out/program --compile\n"));
    } else if (target == std::string("job")) {
      for (const std::string& one : {compile->text, text}) {
        CHECK(contains(one, "aws.amazon.com/neuron: \"16\""));
        CHECK(contains(one, "kind: ConfigMap"));
      }
    }
  }
}

TEST_CASE("combinations that no cluster has are refused by name") {
  LaunchOptions options = asked();
  options.gpus = 16;
  CHECK(why(options) == "--gpus-per-node 16: p5.48xlarge has 8 GPUs");
  options = asked();
  options.efa = 33;
  CHECK(why(options) == "--efa 33: p5.48xlarge has 32 EFA devices");
  options.instances = {"g5.xlarge"};
  options.efa = 1;
  CHECK(why(options, {kG5}) == "--efa 1: g5.xlarge has no EFA device");
  options = asked();
  options.zones = {"us-east-1a", "us-east-1b"};
  CHECK(
      why(options) ==
      "EFA does not leave its availability zone, and --zone names us-east-1a, us-east-1b"
  );
  options.efa = 0;
  CHECK(why(options).empty());
  options = asked();
  options.instances = {"p4d.24xlarge", "p5.48xlarge"};
  CHECK(why(options, {kP4, kP5}) == "EFA of p4d.24xlarge cannot speak with that of p5.48xlarge");
  options.instances = {"p4d.24xlarge", "p4de.24xlarge"};
  CHECK(why(options, {kP4, kP4}).empty());
  options.instances = {"p5.48xlarge", "g5.xlarge"};
  CHECK(contains(why(options, {kP5, kG5}), "8 GPUs and 1 GPU, 32 EFA devices and 0 EFA devices"));
  options.instances = {"trn1.32xlarge"};
  CHECK(contains(why(options, {kTrainium}), "one process drives the 32 devices of a trn1.32xlarge")
  );
  options.nodes = 1;
  CHECK(why(options, {kTrainium}).empty());
  options.instances = {"h100"};
  CHECK(why(options, {NodeType{}}) == "h100 is a machine of hardware.toml, and no instance");
}

TEST_CASE("options that do not go together are refused") {
  LaunchOptions options = asked();
  options.image.clear();
  CHECK(contains(why(options), "runs containers, and --image names none"));
  options = asked("slurm");
  options.gang = "kueue";
  CHECK(why(options) == "--gang is Kubernetes's, and the target is slurm");
  options = asked();
  options.gang = "kueue";
  CHECK(contains(why(options), "--gang kueue needs --queue NAME"));
  options.gang = "coscheduling";
  options.queue = "q";
  CHECK(why(options) == "coscheduling has no queues");
  options = asked("trainjob");
  options.api = "1.9";
  CHECK(why(options) == "--api 1.9: that version of Kubeflow Trainer is not known");
  options.api = "2.0";
  options.gang = "volcano";
  CHECK(contains(why(options), "2.0 knows no gang scheduling by Volcano"));
  options.api = "2.1";
  CHECK(why(options).empty());
  options = asked();
  options.api = "2.1";
  CHECK(contains(why(options), "--api is the version of Kubeflow Trainer"));
  CHECK(contains(why(asked("lsf")), "there is no target lsf"));
  options = asked();
  options.name = "Tiny_run";
  CHECK(contains(why(options), "--name Tiny_run is no name"));
  options = asked();
  options.libfabric = "new";
  CHECK(why(options) == "--libfabric new is no version");
  for (const char* text : {"PET_NNODES=2", "RANK=0", "MASTER_ADDR=here"}) {
    options = asked();
    options.environment = {text};
    CHECK(contains(why(options), "by which processes learn their ranks"));
  }
  for (const char* text : {"A", "=1", "2A=1", "A B=1"}) {
    options.environment = {text};
    CHECK(contains(why(options), "--env"));
  }
  for (const char* text :
       {"pvc",
        "pvc:a",
        "pvc:a:b",
        "nfs:a:/b",
        "pvc::/b",
        "pvc:/a:/b",
        "host:a:/b",
        "pvc:a:/dev/shm"}) {
    options = asked();
    options.volumes = {text};
    CAPTURE(text);
    CHECK(contains(why(options), "--volume"));
  }
  for (const char* text :
       {"m", "m=x", "m=0", "m=70000", "Metrics=1", "a-very-long-name-of-a-port=1"}) {
    options = asked();
    options.ports = {text};
    CAPTURE(text);
    CHECK(contains(why(options), "--port"));
  }
  options = asked();
  options.fetch = {"https://host/file"};
  CHECK(contains(why(options), "--fetch needs --fetch-to"));
  options.fetch_to = "/fsx";
  CHECK(why(options).empty());
  options.fetch = {"ftp://host/file"};
  CHECK(contains(why(options), "is no address of a file"));
  options = asked();
  options.prepare = {"/fsx/a.jsonl"};
  CHECK(contains(why(options), "--prepare needs --prepare-to"));
}

TEST_CASE("every target writes the same run") {
  for (const Target& target : targets()) {
    CAPTURE(target.name);
    LaunchOptions options = asked(target.name);
    options.hours = 36;
    const Job all = job(options);
    CHECK(write_job(all, "out").size() >= 1);
    const std::string text = train(all);
    CHECK(contains(text, target.kubernetes ? "/etc/megahost/recipe.toml" : "out/recipe.toml"));
    CHECK(contains(text, "--resume=auto"));
    CHECK(contains(text, "terminationMessagePolicy: FallbackToLogsOnError") == target.kubernetes);
    CHECK(contains(text, "NCCL_SOCKET_IFNAME"));
    CHECK(contains(text, "loopback")); // and its reason
    CHECK(text == train(job(options)));
    CHECK_FALSE(contains(text, "--preflight"));
    options.preflight = true;
    CHECK(contains(train(job(options)), "--preflight"));
    CHECK_FALSE(contains(text, "--copy-to"));
    options.copy_to = "s3://bucket/runs/a";
    const std::string copied = train(job(options));
    CHECK(contains(copied, "--copy-to"));
    CHECK(contains(copied, "s3://bucket/runs/a"));
    const bool limited = contains(text, "129600") || contains(text, "36:00:00");
    CHECK(limited == (std::string(target.name) != "torchrun"));
  }
  LaunchOptions old = asked("trainjob");
  old.hours = 36;
  old.api = "2.1"; // its TrainJob has no limit
  CHECK_FALSE(contains(train(job(old)), "activeDeadlineSeconds"));
}

TEST_CASE("nodes that NVLink joins share memory and a clique") {
  LaunchOptions options = asked("jobset");
  options.instances = {"p6e-gb200.36xlarge"};
  const std::string text = train(job(options, kGb200));
  CHECK(contains(text, "kind: ComputeDomain"));
  CHECK(contains(text, "topologyKey: nvidia.com/gpu.clique"));
  CHECK(contains(text, "resourceClaimTemplateName: tiny-run-imex"));
  CHECK(contains(text, "kubernetes.io/arch: arm64"));
  options.nodes = 19; // more than one clique holds
  CHECK_FALSE(contains(train(job(options, kGb200)), "topologyKey: nvidia.com/gpu.clique"));
}

TEST_CASE("HyperPod's nodes are named and judged by its labels") {
  const std::string text = train(job(asked("hyperpod")));
  CHECK(contains(text, "node.kubernetes.io/instance-type: ml.p5.48xlarge"));
  CHECK(contains(text, "sagemaker.amazonaws.com/node-health-status: Schedulable"));
  CHECK(contains(text, "kind: HyperPodPyTorchJob"));
  CHECK(contains(text, "jobMaxRetryCount: 3"));
  CHECK(contains(text, "name: NNODES"));
  // Kubeflow's job on the same nodes.
  LaunchOptions other = asked("pytorchjob");
  CHECK_FALSE(contains(train(job(other)), "sagemaker"));
  other.hyperpod = true;
  const std::string kubeflow = train(job(other));
  CHECK(contains(kubeflow, "node.kubernetes.io/instance-type: ml.p5.48xlarge"));
  CHECK(contains(kubeflow, "sagemaker.amazonaws.com/node-health-status: Schedulable"));
  CHECK(contains(kubeflow, "sagemaker.amazonaws.com/enable-job-auto-resume: \"true\""));
}

TEST_CASE("a script quotes what a shell would read") {
  LaunchOptions options = asked("slurm");
  options.environment = {"A=b c$d"};
  options.sbatch = {"--account=me"};
  options.queue = "p5";
  const std::string text = train(job(options));
  CHECK(contains(text, "export A='b c$d'  # given by --env\n"));
  CHECK(contains(text, "#SBATCH --account=me\n"));
  CHECK(contains(text, "#SBATCH --partition=p5\n"));
  CHECK(contains(text, "#SBATCH --ntasks-per-node=8\n"));
}
