#include "core/launch/job.hpp"
#include "megahost/error.hpp"

#include <array>
#include <charconv>

namespace mh {

namespace {

using Version = std::pair<int64_t, int64_t>;

/// "1.22.0amzn1.0": its first two numbers. Nothing was typed: as new as any.
Version version_of(const std::string& text, const char* option) {
  if (text.empty()) {
    return {1000, 0};
  }
  Version version;
  const char* end = text.data() + text.size();
  const auto major = std::from_chars(text.data(), end, version.first);
  const bool dot = major.ec == std::errc() && major.ptr != end && *major.ptr == '.';
  if (!dot || std::from_chars(major.ptr + 1, end, version.second).ec != std::errc()) {
    throw Error(
        std::string(option) + " " + text + " is no version",
        "write it as 1.22; the image's EFA installer names it"
    );
  }
  return version;
}

/// The properties that the variables of a job depend on.
struct Network {
  bool efa, rdma, several, huge_pages, neuron, rounds;
  Version libfabric, plugin;
};

struct EnvironmentRule {
  const char *name, *value;
  bool (*needed)(const Network& network);
  const char* reason;
};

// FI_EFA_FORK_SAFE, FI_EFA_ENABLE_SHM_TRANSFER and RDMAV_* are not here: the first does nothing on
// Linux 5.15 and later, the second is libfabric's default, AWS advises against the third.
constexpr std::array<EnvironmentRule, 9> kRules{{
    {"FI_PROVIDER",
     "efa",
     [](const Network& n) { return n.efa && n.plugin < Version(1, 6); },
     "aws-ofi-nccl before 1.6 leaves the choice of libfabric's provider to others"},
    {"NCCL_PROTO",
     "simple",
     [](const Network& n) { return n.efa && n.plugin < Version(1, 6); },
     "aws-ofi-nccl before 1.6 does not keep NCCL from LL128, which EFA's order of bytes breaks"},
    {"FI_EFA_USE_DEVICE_RDMA",
     "1",
     [](const Network& n) {
       return n.rdma && (n.libfabric < Version(1, 18) || n.plugin < Version(1, 7));
     },
     "libfabric before 1.18 uses the devices' RDMA only if it is told to"},
    {"FI_EFA_USE_HUGE_PAGE",
     "0",
     [](const Network& n) { return n.efa && !n.huge_pages; },
     "no huge pages are asked for, and with some of the node's a process could not fork"},
    {"NCCL_SOCKET_IFNAME",
     "^docker,lo,veth",
     [](const Network& n) { return n.several; },
     "NCCL's ranks meet over the node's own interface, not the loopback or a container's bridge"},
    {"NEURON_CC_FLAGS",
     "--model-type=transformer",
     [](const Network& n) { return n.neuron; },
     "what neuronx-cc's documentation has for models of attention"},
    {"NEURON_RT_EXEC_TIMEOUT",
     "600",
     [](const Network& n) { return n.neuron; },
     "seconds that a step may take, as AWS's script for GPT-3 6.7B has it"},
    {"NEURON_RT_STOCHASTIC_ROUNDING_EN",
     "1",
     [](const Network& n) { return n.neuron && n.rounds; },
     "weights in bf16 alone lose small updates where they are rounded to nearest"},
    {"NEURON_RT_STOCHASTIC_ROUNDING_SEED",
     "0",
     [](const Network& n) { return n.neuron && n.rounds; },
     "a run that is repeated rounds as it did"},
}};

} // namespace

std::vector<JobVariable>
network_variables(const Job& job, const std::string& libfabric, const std::string& ofi_nccl) {
  const bool nccl = job.gpus && job.node.processes == 0;
  const Network network{
      .efa = nccl && job.efa > 0,
      .rdma = nccl && job.efa > 0 && job.node.rdma != "none",
      .several = nccl && job.nodes > 1,
      .huge_pages = job.huge_pages,
      .neuron = job.gpus && job.node.resource == "aws.amazon.com/neuron",
      .rounds = job.run.rounds,
      .libfabric = version_of(libfabric, "--libfabric"),
      .plugin = version_of(ofi_nccl, "--ofi-nccl")};
  std::vector<JobVariable> variables;
  for (const EnvironmentRule& rule : kRules) {
    if (rule.needed(network)) {
      variables.push_back({rule.name, rule.value, rule.reason});
    }
  }
  return variables;
}

} // namespace mh
