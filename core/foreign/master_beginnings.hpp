#pragma once
/// Whether another program's masters are its weights, before a run takes them in their place.

#include "megahost/checkpoint_format.hpp"

#include <string>
#include <vector>

namespace mh {

/// The beginnings of masters and of their weights, which are read with all the rest.
class MasterBeginnings {
public:
  /// Adds slices of a weight and of its "optimizer.master.NAME", if there are both.
  void add(const CheckpointReader& saved, const std::string& name, std::vector<Slice>& ret_slices);

  /// Compares what was read.
  ///
  /// from:    "runs/megatron, step 100"
  /// Throws:  mh::Error (exit code 5) naming a weight whose master is another number altogether
  void require_alike(const std::string& from) const;

private:
  struct Beginning {
    std::string name;
    at::Tensor weight, master;
  };

  std::vector<Beginning> all_;
};

} // namespace mh
