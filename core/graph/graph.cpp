#include "core/graph/graph.hpp"

#include <algorithm>

namespace mh::program {

Graph with_needed_nodes(
    Graph graph, const std::vector<int64_t>& outputs, const std::vector<int64_t>& given
) {
  std::vector<bool> needed(graph.values.size()), known(graph.values.size());
  for (const int64_t value : given) {
    known[static_cast<size_t>(value)] = true;
  }
  for (const int64_t output : outputs) {
    needed[static_cast<size_t>(output)] = true;
  }
  const auto is_needed = [&](int64_t value) {
    return value >= 0 && needed[static_cast<size_t>(value)] && !known[static_cast<size_t>(value)];
  };
  std::vector<Node> kept; // the last first
  for (auto node = graph.nodes.rbegin(); node != graph.nodes.rend(); ++node) {
    if (std::none_of(node->outputs.begin(), node->outputs.end(), is_needed)) {
      continue;
    }
    for (const auto& values : node->inputs) {
      for (const int64_t value : values) {
        if (value >= 0) {
          needed[static_cast<size_t>(value)] = true;
        }
      }
    }
    kept.push_back(std::move(*node));
  }
  std::reverse(kept.begin(), kept.end());
  graph.nodes = std::move(kept);
  return graph;
}

at::ScalarType narrow(at::ScalarType dtype) {
  return dtype == at::kDouble ? at::kFloat : dtype == at::kLong ? at::kInt : dtype;
}

Graph narrowed(Graph graph) {
  for (GraphValue& value : graph.values) {
    value.dtype = narrow(value.dtype);
  }
  for (Node& node : graph.nodes) {
    if (node.op.empty()) {
      node.constant = node.constant.to(narrow(node.constant.scalar_type()));
    }
  }
  return graph;
}

} // namespace mh::program
