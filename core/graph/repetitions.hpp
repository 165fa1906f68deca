#pragma once
/// Parts of a graph that repeat: layers that are alike.

#include "core/graph/graph.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace mh::program {

/// `count` parts of `period` nodes each, one after the other from node `begin`, which call the same
/// operators on tensors of the same shapes.
struct AlikeParts {
  size_t begin = 0, period = 0, count = 0;

  [[nodiscard]] size_t end() const { return begin + period * count; }
};

/// The nodes that make a graph's values.
class Origins {
public:
  explicit Origins(const Graph& graph);

  /// The node that makes a value; none for an input of the graph.
  [[nodiscard]] std::optional<size_t> node(int64_t value) const;

  /// The value's place in a repetition.
  struct Place {
    size_t part, node, output;
  };

  /// None if it comes from elsewhere.
  [[nodiscard]] std::optional<Place> place(int64_t value, const AlikeParts& of) const;

private:
  std::vector<int64_t> nodes_, outputs_; // by value; -1: none
};

/// How each part of a repetition comes to a tensor that its nodes read.
enum class PartSource {
  own,     ///< the part made it
  shared,  ///< one value for all parts
  carried, ///< the part before made it; for the first one it comes from outside
  row,     ///< each part has another one from outside
  none     ///< no rule that a loop can follow
};

/// `values`: what each part reads at one place.
[[nodiscard]] PartSource
source_of(const std::vector<int64_t>& values, const AlikeParts& of, const Origins& origins);

/// The values that parts read at an argument's place: [parts].
[[nodiscard]] std::vector<int64_t> values_of_parts(
    const Graph& graph, const AlikeParts& of, size_t node, size_t argument, size_t number
);

/// Whether a number that is this argument may be a tensor as well.
[[nodiscard]] bool takes_tensor(const Node& node, size_t argument);

/// Repetitions that can be loops and read other inputs of the graph in each part, three times at
/// least, in their order.
[[nodiscard]] std::vector<AlikeParts> find_repetitions(const Graph& graph);

} // namespace mh::program
