#include "core/launch/node.hpp"

namespace mh {

void Node::fields(Fields<Node>& f) {
  f.add("accelerators", &Node::accelerators, "GPUs, or chips of another kind").at_least(0);
  f.add("resource", &Node::resource, "what Kubernetes counts accelerators as");
  f.add("ranks", &Node::ranks, "ranks of an instance; 0: one for each accelerator").at_least(0);
  f.add("efa", &Node::efa, "EFA devices that carry traffic").at_least(0);
  f.add("rdma", &Node::rdma, "what EFA devices do").one_of({"none", "read", "write"});
  f.add("efa_group", &Node::efa_group, "EFA speaks only with instances of the same group");
  f.add("gbit_s", &Node::gbit_s, "network of all devices").at_least(0).unit("Gbit/s");
  f.add("arch", &Node::arch, "of images").one_of({"amd64", "arm64"});
  f.add("clique", &Node::clique, "instances that NVLink joins; 0: only its own GPUs").at_least(0);
}

} // namespace mh
