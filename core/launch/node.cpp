#include "core/launch/node.hpp"

namespace mh {

void NodeType::fields(Fields<NodeType>& f) {
  f.add("accelerators", &NodeType::accelerators, "GPUs, or chips of another kind").at_least(0);
  f.add("resource", &NodeType::resource, "what Kubernetes counts accelerators as");
  f.add("ranks", &NodeType::ranks, "ranks of an instance; 0: one for each accelerator").at_least(0);
  f.add("processes", &NodeType::processes, "processes that run them; 0: one for each rank")
      .at_least(0);
  f.add("device", &NodeType::device, "the recipe's device for it; empty: one of GPUs");
  f.add("efa", &NodeType::efa, "EFA devices that carry traffic").at_least(0);
  f.add("rdma", &NodeType::rdma, "what EFA devices do").one_of({"none", "read", "write"});
  f.add("efa_group", &NodeType::efa_group, "EFA speaks only with instances of the same group");
  f.add("gbit_s", &NodeType::gbit_s, "network of all devices").at_least(0).unit("Gbit/s");
  f.add("arch", &NodeType::arch, "architecture of images").one_of({"amd64", "arm64"});
  f.add("clique", &NodeType::clique, "instances that NVLink joins; 0: only its own GPUs")
      .at_least(0);
}

} // namespace mh
