#pragma once
/// Layers that are alike as loops, so that a program of many is no longer than one of a few.

#include "core/graph/graph.hpp"

#include <cstdint>
#include <string>
#include <vector>

namespace mh::program {

/// The graph with repetitions (repetitions.hpp) as loops over stacks: of weights and gradients, of
/// what forward passes save for backward passes, of numbers that differ.
[[nodiscard]] Graph with_loops(Graph graph, const std::vector<int64_t>& outputs);

/// Operators, those in loops counted once.
[[nodiscard]] size_t operators(const Graph& graph);

/// "24 x 210 operators, 24 x 480 operators": the loops of a graph; empty if there are none.
[[nodiscard]] std::string loops_text(const Graph& graph);

} // namespace mh::program
