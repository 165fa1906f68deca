#pragma once
/// The properties of an instance in addition to the rates that plans read: a table `node` of a row
/// of presets/hardware.toml.

#include "megahost/export.hpp"
#include "megahost/schema.hpp"

#include <cstdint>
#include <string>

namespace mh {

/// One instance of a cloud, or one machine of a cluster.
struct MH_API NodeType {
  int64_t accelerators = 0;                ///< GPUs, or chips of another kind
  std::string resource = "nvidia.com/gpu"; ///< resource by which Kubernetes counts them
  int64_t ranks = 0;                       ///< ranks that it runs; 0: one for each accelerator
  int64_t processes = 0;                   ///< processes that run them; 0: one for each rank
  std::string device{};                    ///< the recipe's for it; empty: one of GPUs
  int64_t efa = 0;                         ///< EFA devices that carry traffic
  std::string rdma = "none";               ///< none | read | write: what they do
  std::string efa_group{};                 ///< EFA speaks only with instances of the same group
  int64_t gbit_s = 0;                      ///< rate of its network, all devices together
  std::string arch = "amd64";              ///< architecture of images
  /// Instances whose GPUs NVLink joins: they form a clique, and share memory by IMEX.
  int64_t clique = 0;

  static void fields(Fields<NodeType>& f);

  /// Whether the row has one: rows of single GPUs have none.
  [[nodiscard]] bool known() const { return ranks_here() > 0; }

  [[nodiscard]] int64_t ranks_here() const { return ranks > 0 ? ranks : accelerators; }
};

} // namespace mh
