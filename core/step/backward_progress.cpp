#include "core/step/backward_progress.hpp"

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/graph_task.h>

namespace mh {

namespace {

/// Whether autograd runs a node. A block that runs forward there, to recompute what it did not
/// save, records gradients.
bool runs_backward() {
  return torch::autograd::get_current_graph_task_id() >= 0 && !at::GradMode::is_enabled();
}

} // namespace

// Autograd runs the nodes that were made later first: when it comes to the node that a block's
// output made, nothing of the blocks after it is left.
bool BackwardProgress::enter(const std::vector<Parameter*>& parameters) {
  const auto [block, is_new] =
      blocks_.try_emplace(&parameters, static_cast<int64_t>(blocks_.size()));
  if (is_new) {
    for (const auto* parameter : parameters) {
      first_.try_emplace(parameter, block->second);
    }
  }
  if (!runs_backward()) {
    return false;
  }
  reached_ = block->second;
  return true;
}

bool BackwardProgress::is_past(const Parameter& parameter) const {
  const auto first = first_.find(&parameter);
  return first != first_.end() && reached_ != kNone && first->second > reached_;
}

} // namespace mh
