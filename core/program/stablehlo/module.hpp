#pragma once
/// A recorded graph as a module of StableHLO.

#include "core/graph/graph.hpp"

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace mh::program::stablehlo {

struct ModuleOptions {
  std::string name = "step";
  int64_t ranks = 1;                  ///< replicas
  std::map<size_t, size_t> donated{}; ///< inputs whose memory an output takes over: input -> output
};

/// The module with one function, `main`, from the graph's inputs to `outputs`. The text is a function
/// of the arguments.
///
/// Throws:  mh::Error that names the operators of which no lowering is known
[[nodiscard]] std::string
module_text(const Graph& graph, const std::vector<int64_t>& outputs, const ModuleOptions& options);

} // namespace mh::program::stablehlo
