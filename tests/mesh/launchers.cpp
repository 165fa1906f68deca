// Environments as the launchers make them, whole and in part.

#include "core/mesh/launchers.hpp"

#include "megahost/error.hpp"
#include "tests/formats/refusal.hpp"

#include <doctest/doctest.h>

#include <map>

namespace launchers_tests {

using mh::find_world;
using mh::test::contains;

namespace {

using Variables = std::map<std::string, std::string>;

mh::Environment environment(const Variables& variables) {
  return [variables](const std::string& name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    return found == variables.end() ? std::nullopt : std::optional(found->second);
  };
}

mh::Found found(const Variables& variables) {
  return find_world(environment(variables)).value();
}

std::string why(const Variables& variables) {
  return mh::test::refusal([&] { static_cast<void>(find_world(environment(variables))); });
}

const Variables kTorchrun{
    {"TORCHELASTIC_RUN_ID", "none"},
    {"TORCHELASTIC_USE_AGENT_STORE", "True"},
    {"RANK", "3"},
    {"WORLD_SIZE", "4"},
    {"LOCAL_RANK", "1"},
    {"LOCAL_WORLD_SIZE", "2"},
    {"MASTER_ADDR", "10.1.2.3"},
    {"MASTER_PORT", "29500"}};

const Variables kSlurm{
    {"SLURM_JOB_ID", "40007"},
    {"SLURM_STEP_ID", "0"},
    {"SLURM_PROCID", "2"},
    {"SLURM_STEP_NUM_TASKS", "3"},
    {"SLURM_LOCALID", "0"},
    {"SLURM_NODEID", "1"},
    {"SLURM_STEP_TASKS_PER_NODE", "2,1"},
    {"SLURM_STEP_NODELIST", "gpu[07-08]"}};

} // namespace

TEST_CASE("no launcher started this process") {
  CHECK(!find_world(environment({})));
  // A batch script of Slurm has a rank, too, but is no step.
  CHECK(!find_world(environment({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "4"}})));
}

TEST_CASE("torchrun's agent keeps the store") {
  const auto [world, launcher, agent_store] = found(kTorchrun);
  CHECK(launcher == "torchrun");
  CHECK(agent_store);
  CHECK(world.rank == 3);
  CHECK(world.size == 4);
  CHECK(world.local_rank == 1);
  CHECK(world.local_size == 2);
  CHECK(world.master_address == "10.1.2.3");
  CHECK(world.master_port == 29500);
}

TEST_CASE("a step of Slurm: the first node and a port of the job") {
  const auto [world, launcher, agent_store] = found(kSlurm);
  CHECK(launcher == "srun");
  CHECK(!agent_store);
  CHECK(world.rank == 2);
  CHECK(world.local_size == 1);
  CHECK(world.master_address == "gpu07");
  CHECK(world.master_port == 20007);
}

TEST_CASE("under sbatch mpirun's ranks see the step of their daemon: Open MPI wins") {
  Variables both = kSlurm;
  both.insert(
      {{"OMPI_COMM_WORLD_RANK", "1"},
       {"OMPI_COMM_WORLD_SIZE", "2"},
       {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
       {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}}
  );
  CHECK(found(both).launcher == "mpirun");
  CHECK(found(both).world.size == 2);
}

TEST_CASE("whoever wraps another wins: megahost, torchrun, Open MPI, PMI, Slurm, bare variables") {
  Variables all = kTorchrun; // the last one's variables are among its own
  const auto add = [&](const Variables& more) { all.insert(more.begin(), more.end()); };
  add(kSlurm);
  add(
      {{"OMPI_COMM_WORLD_RANK", "0"},
       {"OMPI_COMM_WORLD_SIZE", "5"},
       {"OMPI_COMM_WORLD_LOCAL_RANK", "0"},
       {"OMPI_COMM_WORLD_LOCAL_SIZE", "5"},
       {"PMI_RANK", "1"},
       {"PMI_SIZE", "6"},
       {"MEGAHOST_RANK", "1"},
       {"MEGAHOST_WORLD_SIZE", "2"},
       {"MEGAHOST_LOCAL_RANK", "1"},
       {"MEGAHOST_LOCAL_WORLD_SIZE", "2"},
       {"MEGAHOST_MASTER_ADDR", "127.0.0.1"},
       {"MEGAHOST_MASTER_PORT", "29511"}}
  );
  const auto wins = [&](const std::string& launcher, int64_t size, const char* sign) {
    const auto [world, name, agent_store] = found(all);
    CHECK(name == launcher);
    CHECK(world.size == size);
    all.erase(sign);
  };
  wins("megahost", 2, "MEGAHOST_RANK");
  wins("torchrun", 4, "TORCHELASTIC_RUN_ID");
  wins("mpirun", 5, "OMPI_COMM_WORLD_RANK");
  wins("pmi", 6, "PMI_RANK");
  wins("srun", 3, "SLURM_STEP_ID");
  all.erase("SLURM_STEP_TASKS_PER_NODE");
  wins("a launcher of torch.distributed", 4, "RANK");
  CHECK(!find_world(environment(all)));
}

TEST_CASE("PMI on several machines: whoever says the place on this one") {
  Variables pmi2 = kSlurm; // srun --mpi=pmi2
  pmi2.insert({{"PMI_RANK", "2"}, {"PMI_SIZE", "3"}});
  CHECK(found(pmi2).launcher == "pmi");
  CHECK(found(pmi2).world.local_rank == 0);
  CHECK(found(pmi2).world.local_size == 1);
  CHECK(found(pmi2).world.master_address == "gpu07");
  const auto hydra = found({{"PMI_RANK", "5"},
                            {"PMI_SIZE", "8"},
                            {"MPI_LOCALRANKID", "1"},
                            {"MPI_LOCALNRANKS", "4"},
                            {"MASTER_ADDR", "10.0.0.5"},
                            {"MASTER_PORT", "29500"}}
  ).world;
  CHECK(hydra.rank == 5);
  CHECK(hydra.local_rank == 1);
  CHECK(hydra.local_size == 4);
}

TEST_CASE("PMI says rank and size; the rest is given") {
  const Variables pmi{
      {"PMI_RANK", "1"}, {"PMI_SIZE", "2"}, {"MASTER_ADDR", "10.0.0.5"}, {"MASTER_PORT", "29500"}};
  const auto [world, launcher, agent_store] = found(pmi);
  CHECK(launcher == "pmi");
  CHECK(!agent_store);
  CHECK(world.rank == 1);
  CHECK(world.size == 2);
  CHECK(world.master_address == "10.0.0.5");
  CHECK(world.master_port == 29500);
  CHECK(why({{"PMI_RANK", "1"}}).find("lacks PMI_SIZE") != std::string::npos);
}

TEST_CASE("Open MPI on several machines says where mpirun is") {
  const auto world = found({{"OMPI_COMM_WORLD_RANK", "1"},
                            {"OMPI_COMM_WORLD_SIZE", "2"},
                            {"OMPI_COMM_WORLD_LOCAL_RANK", "0"},
                            {"OMPI_COMM_WORLD_LOCAL_SIZE", "1"},
                            {"OMPI_MCA_orte_hnp_uri", "99.0;tcp://10.0.0.5,192.168.1.5:3456"}}
  ).world;
  CHECK(world.master_address == "10.0.0.5");
}

TEST_CASE("what is there in part is refused by name") {
  for (const char* missing : {"RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_PORT"}) {
    Variables part = kTorchrun;
    part.erase(missing);
    CHECK(why(part).find("lacks " + std::string(missing)) != std::string::npos);
  }
  Variables bad = kTorchrun;
  bad["RANK"] = "three";
  CHECK(why(bad).find("RANK is \"three\"") != std::string::npos);
  bad["RANK"] = "4";
  CHECK(why(bad).find("rank 4 of 4") != std::string::npos);
  CHECK(why({{"MEGAHOST_RANK", "0"}}).find("lacks MEGAHOST_WORLD_SIZE") != std::string::npos);
  CHECK(
      why({{"OMPI_COMM_WORLD_RANK", "1"},
           {"OMPI_COMM_WORLD_SIZE", "2"},
           {"OMPI_COMM_WORLD_LOCAL_RANK", "0"},
           {"OMPI_COMM_WORLD_LOCAL_SIZE", "1"}}
      ).find("nothing says where rank 0 is") != std::string::npos
  );
}

TEST_CASE("whoever sets the variables of torch.distributed") {
  Variables env = kTorchrun;
  env.erase("TORCHELASTIC_RUN_ID");
  env.erase("TORCHELASTIC_USE_AGENT_STORE");
  env.erase("LOCAL_WORLD_SIZE");
  const auto [world, launcher, agent_store] = found(env);
  CHECK(!agent_store);
  CHECK(world.rank == 3);
  CHECK(world.size == 4);
  CHECK(world.local_rank == 1);
  CHECK(world.master_address == "10.1.2.3");
  env["RANK"] = "4";
  CHECK(why(env).find("rank 4 of 4") != std::string::npos);
  CHECK(why({{"RANK", "0"}}).find("lacks WORLD_SIZE") != std::string::npos);
  CHECK(why({{"RANK", "0"}, {"WORLD_SIZE", "2"}}).find("lacks LOCAL_RANK") != std::string::npos);
  env["SLURM_STEP_ID"] = "0"; // srun's own variables are asked first
  CHECK(why(env).find("lacks SLURM_PROCID") != std::string::npos);
}

TEST_CASE("node lists") {
  CHECK(mh::first_host("login") == "login");
  CHECK(mh::first_host("a,b") == "a");
  CHECK(mh::first_host("n[3-7,9],m1") == "n3");
  CHECK(mh::first_host("n[03,09]") == "n03");
  CHECK(mh::first_host("rack1n[2-3].cluster,x") == "rack1n2.cluster");
  CHECK(mh::tasks_of_node("2(x3),1", 2) == 2);
  CHECK(mh::tasks_of_node("2(x3),1", 3) == 1);
  CHECK(mh::tasks_of_node("8", 0) == 8);
  CHECK_THROWS_AS(static_cast<void>(mh::tasks_of_node("2(x3)", 3)), mh::Error);
  CHECK_THROWS_AS(static_cast<void>(mh::tasks_of_node("", 0)), mh::Error);
}

namespace {

/// A pod of a PyTorchJob with a Master; TrainJob lacks RANK, WORLD_SIZE and MASTER_ADDR.
const Variables kPod{
    {"PET_NNODES", "3"},
    {"PET_NPROC_PER_NODE", "8"},
    {"PET_NODE_RANK", "2"},
    {"PET_MASTER_ADDR", "tiny-master-0"},
    {"PET_MASTER_PORT", "23456"},
    {"MASTER_ADDR", "tiny-master-0"},
    {"MASTER_PORT", "23456"},
    {"RANK", "2"},
    {"WORLD_SIZE", "24"}};

Variables pod(const Variables& changed, const std::string& without = "") {
  Variables variables = changed;
  variables.insert(kPod.begin(), kPod.end());
  variables.erase(without);
  return variables;
}

std::string why_no_node(const Variables& variables) {
  return mh::test::refusal([&] { static_cast<void>(mh::find_node(environment(variables))); });
}

} // namespace

TEST_CASE("a pod is a node, whose RANK counts pods") {
  CHECK_FALSE(find_world(environment(kPod)));
  const auto node = mh::find_node(environment(kPod)).value();
  CHECK(node.node == 2);
  CHECK(node.nodes == 3);
  CHECK(node.ranks == 8);
  CHECK(node.master_address == "tiny-master-0");
  CHECK(node.master_port == 23456);
  CHECK_FALSE(mh::find_node(environment(pod({{"PET_NPROC_PER_NODE", "auto"}})))->ranks);
  CHECK_FALSE(mh::find_node(environment(pod({}, "PET_NPROC_PER_NODE")))->ranks);
  // An Indexed Job, of which the kubelet says the index.
  const auto indexed =
      mh::find_node(environment(pod({{"JOB_COMPLETION_INDEX", "1"}}, "PET_NODE_RANK"))).value();
  CHECK(indexed.node == 1);
}

TEST_CASE("a process that a launcher started in a pod is a rank") {
  CHECK_FALSE(mh::find_node(environment({})));
  CHECK_FALSE(mh::find_node(environment(pod(kTorchrun))));
  CHECK(found(pod(kTorchrun)).launcher == "torchrun");
  CHECK(found(pod(kTorchrun)).world.rank == 3);
  CHECK_FALSE(mh::find_node(environment(pod(
      {{"MEGAHOST_RANK", "0"},
       {"MEGAHOST_WORLD_SIZE", "24"},
       {"MEGAHOST_LOCAL_RANK", "0"},
       {"MEGAHOST_MASTER_ADDR", "tiny-master-0"},
       {"MEGAHOST_MASTER_PORT", "23456"},
       {"MEGAHOST_LOCAL_WORLD_SIZE", "8"}}
  ))));
}

TEST_CASE("a pod of a PyTorchJob with an elasticPolicy is the number behind its name") {
  const Variables pod{
      {"PET_NNODES", "3:3"},
      {"PET_NPROC_PER_NODE", "8"},
      {"PET_RDZV_BACKEND", "c10d"},
      {"PET_RDZV_ENDPOINT", "tiny-worker-0:23456"},
      {"PET_MAX_RESTARTS", "3"},
      {"HOSTNAME", "tiny-worker-2"}};
  CHECK_FALSE(find_world(environment(pod)));
  const auto node = mh::find_node(environment(pod)).value();
  CHECK(node.node == 2);
  CHECK(node.nodes == 3);
  CHECK(node.ranks == 8);
  CHECK(node.master_address == "tiny-worker-0");
  CHECK(node.master_port == 23456);
  const auto with = [&](const char* name, const char* value) {
    Variables other = pod;
    other[name] = value;
    return other;
  };
  CHECK(mh::find_node(environment(with("PET_NNODES", "3")))->nodes == 3);
  CHECK(contains(
      why_no_node(with("PET_NNODES", "2:4")),
      "one of 2 to 4 (PET_NNODES), and nothing says of how many"
  ));
  CHECK(contains(why_no_node(with("PET_RDZV_BACKEND", "etcd")), "does not say its number"));
  CHECK(contains(why_no_node(with("HOSTNAME", "ip-10-0-0-7")), "does not say its number"));
  CHECK(contains(why_no_node(with("HOSTNAME", "tiny-worker-3")), "node 3 of 3"));
  Variables ranks = pod;
  ranks.insert(kTorchrun.begin(), kTorchrun.end());
  CHECK(found(ranks).launcher == "torchrun");
}

TEST_CASE("HyperPod's agent is torchrun without a store, and counts ranks as nodes") {
  Variables agent = kTorchrun;
  agent["TORCHELASTIC_USE_AGENT_STORE"] = "False";
  agent.insert(
      {{"GROUP_RANK", "1"},
       {"GROUP_WORLD_SIZE", "4"},
       {"JOB_RESTART_COUNT", "1"},
       {"TORCHELASTIC_RESTART_COUNT", "1"},
       {"NNODES", "2"},
       {"HYPERPOD_SIGNAL_COORDINATION", "disabled"},
       {"HYPERPOD_ELASTICAGENT_SOCKET_SERVER_PATH", "/tmp/hyperpod_elastic_agent_7.sock"}}
  );
  const auto [world, launcher, agent_store] = found(agent);
  CHECK(launcher == "torchrun");
  CHECK_FALSE(agent_store);
  CHECK(world.rank == 3);
  CHECK(world.size == 4);
  CHECK(world.local_size == 2);
}

TEST_CASE("a pod's place that is not whole is refused") {
  CHECK(contains(why_no_node(pod({}, "PET_MASTER_ADDR")), "nothing says where rank 0 is"));
  CHECK(contains(why_no_node(pod({}, "PET_MASTER_PORT")), "lacks PET_MASTER_PORT"));
  CHECK(contains(why_no_node(pod({{"PET_NODE_RANK", "3"}})), "node 3 of 3"));
  CHECK(contains(why_no_node(pod({{"PET_NNODES", "two"}})), "PET_NNODES"));
  CHECK(why_no_node(pod({{"PET_NNODES", "1"}, {"PET_NODE_RANK", "0"}}, "PET_MASTER_ADDR")).empty());
}

TEST_CASE("a place that no process can have is told") {
  CHECK(mh::world_fault(
            {.rank = 1, .size = 2, .local_rank = 1, .local_size = 2, .master_port = 29500}
  )
            .empty());
  CHECK(mh::world_fault({}).empty()); // alone, it meets no one
  CHECK(
      mh::world_fault({.rank = 5, .size = 2, .master_port = 29500}) ==
      "rank 5 of 2, local rank 0 of 1"
  );
  CHECK(mh::world_fault({.rank = 0, .size = 2}) == "one of 2 which meet at port 0");
  CHECK(
      mh::world_fault({.rank = 0, .size = 2, .master_port = 70000}) ==
      "one of 2 which meet at port 70000"
  );
}

} // namespace launchers_tests
