#pragma once
/// The computation on tensors without memory as a graph of ATen operators: single assignment, no
/// views, no writes.

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace mh::program {

/// A tensor of the graph.
struct GraphValue {
  at::ScalarType dtype = at::kFloat;
  std::vector<int64_t> sizes{};
};

struct Loop;

/// The operator of a node that is a loop.
inline constexpr const char* kLoop = "mh_program::loop";

/// One operator's call, a constant, or a loop.
struct Node {
  std::string op;                       ///< "aten::add.Tensor"; empty for a constant
  std::vector<c10::IValue> arguments{}; ///< by the schema's order; None where it holds tensors
  std::vector<std::vector<int64_t>>
      inputs{};                   ///< for each argument, the values of its tensors; -1: none
  std::vector<int64_t> outputs{}; ///< -1: not defined
  at::Tensor constant{};          ///< in host memory
  bool by_rank = false;           ///< the constant's first dimension is the rank (merge.hpp)
  /// Arguments that differ between ranks: the number of each.
  std::map<size_t, std::vector<at::Scalar>> of_ranks{};
  std::shared_ptr<const Loop> loop{}; ///< `inputs` are then the values from outside that it reads
};

/// Nodes that run several times. Values of the body are numbers that other nodes may have again.
struct Loop {
  /// The value `inside` of repetition i is stack[first + step * i].
  struct Row {
    int64_t inside, stack, first, step;
  };

  /// The value `inside` is `start` at first, and then `next` of the repetition before.
  struct Carried {
    int64_t inside, start, next;
    int64_t last = -1; ///< `next` of the last repetition, outside; -1: not asked for
  };

  /// The values `inside` of all repetitions, [repetitions, ...], outside.
  struct Stack {
    int64_t inside, stack;
  };

  int64_t repetitions = 0;
  std::vector<Node> body{};
  std::vector<Row> rows{};
  std::vector<Carried> carried{};
  std::vector<Stack> stacks{};
};

struct Graph {
  std::vector<GraphValue> values{};
  std::vector<Node> nodes{}; ///< in the order in which they ran
  std::vector<int64_t> inputs{};
  int64_t rank = -1; ///< the input that says which rank runs it; -1: none asks

  [[nodiscard]] const GraphValue& value(int64_t number) const {
    return values[static_cast<size_t>(number)];
  }
};

/// The graph with the nodes that `outputs` need where `given` are known, and no others.
[[nodiscard]] Graph with_needed_nodes(
    Graph graph, const std::vector<int64_t>& outputs, const std::vector<int64_t>& given = {}
);

/// float32 for float64, int32 for int64; other types as they are.
[[nodiscard]] at::ScalarType narrow(at::ScalarType dtype);

/// The graph with `narrow` types.
[[nodiscard]] Graph narrowed(Graph graph);

} // namespace mh::program
