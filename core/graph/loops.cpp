#include "core/graph/loops.hpp"

#include "core/base/text.hpp"
#include "core/graph/repetitions.hpp"

#include <ATen/ops/scalar_tensor.h>

#include <algorithm>
#include <deque>
#include <functional>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>

namespace mh::program {

namespace {

std::string bytes_of(const at::Tensor& constant) {
  const at::Tensor dense = constant.contiguous();
  return {static_cast<const char*>(dense.const_data_ptr()), dense.nbytes()};
}

/// Operators whose result is a tensor argument as it is, but for type and shape: the number of it.
const std::map<std::string, size_t, std::less<>> kCopies{
    {"aten::_to_copy", 0},
    {"aten::alias", 0},
    {"aten::clone", 0},
    {"aten::copy", 1},
    {"aten::detach", 0},
    {"aten::expand", 0},
    {"aten::lift_fresh", 0},
    {"aten::view", 0}};

/// Other values by those that are the same, made before them.
using SameValues = std::map<int64_t, int64_t>;

void replace_inputs(Node& ret_node, const SameValues& same) {
  for (auto& values : ret_node.inputs) {
    for (int64_t& value : values) {
      if (const auto first = same.find(value); first != same.end()) {
        value = first->second;
      }
    }
  }
}

/// The graph without readers of copies.
Graph without_copies(Graph graph) {
  SameValues same;
  for (Node& node : graph.nodes) {
    replace_inputs(node, same);
    const auto copies = kCopies.find(node.op);
    if (copies == kCopies.end()) {
      continue;
    }
    const int64_t from = node.inputs[copies->second].front(), value = node.outputs.front();
    const GraphValue &a = graph.value(from), &b = graph.value(value);
    if (a.dtype == b.dtype && a.sizes == b.sizes) {
      same[value] = from;
    }
  }
  return graph;
}

/// The graph with its constants first, of equal ones one.
Graph with_constants_first(Graph graph) {
  std::map<std::string, int64_t> known;
  SameValues same;
  std::vector<Node> constants, others;
  for (Node& node : graph.nodes) {
    if (!node.op.empty()) {
      others.push_back(std::move(node));
      continue;
    }
    const int64_t value = node.outputs.front();
    const auto type = static_cast<char>(node.constant.scalar_type());
    const std::string sizes = c10::str(node.constant.sizes(), node.by_rank, ' ');
    same[value] = known.emplace(type + sizes + bytes_of(node.constant), value).first->second;
    constants.push_back(std::move(node)); // equal ones may be outputs
  }
  for (Node& node : others) {
    replace_inputs(node, same);
  }
  graph.nodes = std::move(constants);
  std::ranges::move(others, std::back_inserter(graph.nodes));
  return graph;
}

/// A repetition while it becomes a loop.
struct MadeLoop {
  AlikeParts of;
  size_t node;                                      ///< the number of the loop's node
  std::map<std::vector<int64_t>, int64_t> inside{}; ///< values that parts read -> that of the body
  Loop loop{};
};

/// Values of a stack: `first`, `first + step`, ...
struct StackRows {
  int64_t stack, first, step;
};

class LoopMaker {
public:
  explicit LoopMaker(Graph graph)
      : old_(std::move(graph))
      , origins_(old_)
      , made_(old_) {
    made_.nodes.clear();
  }

  Graph run(const std::vector<int64_t>& outputs) && {
    size_t next = 0;
    for (const AlikeParts& one : find_repetitions(old_)) {
      copy_nodes(next, one.begin);
      make_loop(one);
      next = one.end();
    }
    copy_nodes(next, old_.nodes.size());
    for (const int64_t output : outputs) {
      fetch(output);
    }
    for (MadeLoop& one : loops_) {
      finish(one);
    }
    return with_needed_nodes(std::move(made_), outputs);
  }

private:
  void copy_nodes(size_t begin, size_t end) {
    for (size_t i = begin; i < end; ++i) {
      for (const auto& values : old_.nodes[i].inputs) {
        for (const int64_t value : values) {
          fetch(value);
        }
      }
      made_.nodes.push_back(old_.nodes[i]);
    }
  }

  int64_t new_value(at::ScalarType dtype, std::vector<int64_t> sizes) {
    made_.values.push_back({dtype, std::move(sizes)});
    return std::ssize(made_.values) - 1;
  }

  int64_t new_stack(int64_t like, int64_t count) {
    const GraphValue value = made_.value(like);
    std::vector<int64_t> sizes = value.sizes;
    sizes.insert(sizes.begin(), count);
    return new_value(value.dtype, std::move(sizes));
  }

  struct LoopPlace {
    MadeLoop* loop;
    Origins::Place at;
  };

  /// The place in a loop where a value is made.
  std::optional<LoopPlace> place(int64_t value) {
    for (MadeLoop& one : loops_) {
      if (const auto at = origins_.place(value, one.of)) {
        return LoopPlace{&one, *at};
      }
    }
    return std::nullopt;
  }

  /// The value's number in the body: that of the first part.
  int64_t in_body(const LoopPlace& place) const {
    return old_.nodes[place.loop->of.begin + place.at.node].outputs[place.at.output];
  }

  /// All parts' values of one of the body, outside.
  int64_t stack_of(MadeLoop& one, int64_t inside) {
    auto& stacks = one.loop.stacks;
    const auto found = std::ranges::find(stacks, inside, &Loop::Stack::inside);
    if (found != stacks.end()) {
      return found->stack;
    }
    const int64_t stack = new_stack(inside, one.loop.repetitions);
    stacks.push_back({inside, stack});
    return stack;
  }

  /// Makes a value that a loop has made known outside of it.
  void fetch(int64_t value) {
    const auto from = place(value);
    if (!from || !fetched_.insert(value).second) {
      return;
    }
    const int64_t inside = in_body(*from);
    const auto part = static_cast<int64_t>(from->at.part);
    if (part + 1 == from->loop->loop.repetitions) {
      for (Loop::Carried& one : from->loop->loop.carried) {
        if (one.next == inside) {
          one.last = value;
          return;
        }
      }
    }
    made_.nodes.push_back(
        {.op = "aten::select.int",
         .arguments = {{}, int64_t{0}, part},
         .inputs = {{stack_of(*from->loop, inside)}, {}, {}},
         .outputs = {value}}
    );
  }

  /// The places in `values` of those that are asked for, if they are equally far apart, one or none.
  static std::optional<StackRows>
  rows_among(const std::vector<int64_t>& values, const std::vector<int64_t>& asked) {
    const auto first = std::ranges::find(values, asked.front()) - values.begin();
    for (const int64_t step : {1, -1}) {
      size_t same = 0;
      for (int64_t at = first; same < asked.size() && at >= 0 && at < std::ssize(values) &&
                               values[static_cast<size_t>(at)] == asked[same];
           at += step) {
        ++same;
      }
      if (same == asked.size()) {
        return StackRows{-1, first, step};
      }
    }
    return std::nullopt;
  }

  /// Values among those of a loop: what its body makes, or what it carries.
  std::optional<StackRows> rows_of_loop(MadeLoop& one, const std::vector<int64_t>& values) {
    for (const int64_t value : {values.front(), values[1]}) {
      if (const auto at = origins_.place(value, one.of)) {
        const int64_t inside = in_body({&one, *at});
        const std::vector<int64_t> made = all_parts(one, *at);
        if (auto rows = rows_among(made, values)) {
          rows->stack = stack_of(one, inside);
          return rows;
        }
        for (const Loop::Carried& carried : one.loop.carried) {
          std::vector<int64_t> before = made;
          before.insert(before.begin(), carried.start);
          before.pop_back();
          if (auto rows = rows_among(before, values); rows && carried.next == inside) {
            rows->stack = stack_of(one, carried.inside);
            return rows;
          }
        }
      }
    }
    return std::nullopt;
  }

  std::vector<int64_t> all_parts(const MadeLoop& one, const Origins::Place& at) const {
    std::vector<int64_t> values;
    for (size_t part = 0; part < one.of.count; ++part) {
      values.push_back(old_.nodes[one.of.begin + part * one.of.period + at.node].outputs[at.output]
      );
    }
    return values;
  }

  /// A stack, or rows of one, that has these values.
  StackRows rows_of(const std::vector<int64_t>& values) {
    for (MadeLoop& one : loops_) {
      if (const auto rows = rows_of_loop(one, values)) {
        return *rows;
      }
    }
    for (const auto& [all, stack] : stacks_) {
      if (auto rows = rows_among(all, values)) {
        rows->stack = stack;
        return *rows;
      }
    }
    for (const int64_t value : values) {
      fetch(value);
    }
    const int64_t stack = new_stack(values.front(), std::ssize(values));
    made_.nodes.push_back(
        {.op = "aten::stack",
         .arguments = {{}, int64_t{0}},
         .inputs = {values, {}},
         .outputs = {stack}}
    );
    stacks_.emplace_back(values, stack);
    return {stack, 0, 1};
  }

  /// The value that a node of the body reads where the parts read `values`.
  int64_t inside(MadeLoop& ret_made, const std::vector<int64_t>& values) {
    const PartSource source = source_of(values, ret_made.of, origins_);
    if (source == PartSource::own) {
      return values.front();
    }
    if (source == PartSource::shared) {
      fetch(values.front());
      ret_made.inside.emplace(values, values.front());
      return values.front();
    }
    const auto [found, is_new] = ret_made.inside.emplace(values, -1);
    if (!is_new) {
      return found->second;
    }
    const GraphValue like = made_.value(values.front());
    const int64_t value = found->second = new_value(like.dtype, like.sizes);
    if (source == PartSource::carried) {
      fetch(values.front());
      const auto made_by = origins_.place(values[1], ret_made.of);
      ret_made.loop.carried.push_back({value, values.front(), in_body({&ret_made, *made_by})});
    } else {
      const StackRows rows = rows_of(values);
      ret_made.loop.rows.push_back({value, rows.stack, rows.first, rows.step});
    }
    return value;
  }

  /// A number of the body that each part has another of, as a tensor.
  std::vector<int64_t> table(MadeLoop& ret_made, size_t node, size_t argument) {
    const AlikeParts& of = ret_made.of;
    std::vector<int64_t> values;
    const at::ScalarType dtype = made_.value(old_.nodes[of.begin + node].outputs.front()).dtype;
    bool same = true;
    std::vector<Node> constants;
    for (size_t part = 0; part < of.count; ++part) {
      const Node& own = old_.nodes[of.begin + part * of.period + node];
      same = same && own.arguments[argument] == old_.nodes[of.begin + node].arguments[argument];
      constants.push_back(
          {.op = "", .constant = at::scalar_tensor(own.arguments[argument].toScalar(), dtype)}
      );
    }
    if (same) {
      return {};
    }
    for (Node& constant : constants) {
      values.push_back(new_value(dtype, {}));
      constant.outputs = {values.back()};
      made_.nodes.push_back(std::move(constant));
    }
    const int64_t value = new_value(dtype, {});
    const StackRows rows = rows_of(values);
    ret_made.loop.rows.push_back({value, rows.stack, rows.first, rows.step});
    return {value};
  }

  void make_loop(const AlikeParts& of) {
    MadeLoop made{.of = of, .node = 0};
    made.loop.repetitions = static_cast<int64_t>(of.count);
    for (size_t j = 0; j < of.period; ++j) {
      Node node = old_.nodes[of.begin + j];
      for (size_t k = 0; k < node.inputs.size(); ++k) {
        if (takes_tensor(node, k)) {
          node.inputs[k] = table(made, j, k);
          continue;
        }
        for (size_t i = 0; i < node.inputs[k].size(); ++i) {
          node.inputs[k][i] = inside(made, values_of_parts(old_, of, j, k, i));
        }
      }
      made.loop.body.push_back(std::move(node));
    }
    made.node = made_.nodes.size();
    made_.nodes.push_back({.op = kLoop});
    loops_.push_back(std::move(made));
  }

  /// Completes a loop's node, when all is known that is read of it.
  void finish(MadeLoop& ret_made) {
    Node& node = made_.nodes[ret_made.node];
    const Loop& loop = ret_made.loop;
    std::set<int64_t> read;
    for (const auto& [values, value] : ret_made.inside) {
      if (source_of(values, ret_made.of, origins_) == PartSource::shared) {
        read.insert(value);
      }
    }
    for (const Loop::Row& row : loop.rows) {
      read.insert(row.stack);
    }
    for (const Loop::Carried& carried : loop.carried) {
      read.insert(carried.start);
      node.outputs.push_back(carried.last);
    }
    for (const Loop::Stack& stack : loop.stacks) {
      node.outputs.push_back(stack.stack);
    }
    node.inputs = {{read.begin(), read.end()}};
    node.arguments.resize(1);
    node.loop = std::make_shared<const Loop>(std::move(ret_made.loop));
  }

  Graph old_;
  Origins origins_; // the nodes are those of old_
  Graph made_;
  std::deque<MadeLoop> loops_;
  std::vector<std::pair<std::vector<int64_t>, int64_t>> stacks_; // values, and the stack of them
  std::set<int64_t> fetched_;
};

} // namespace

Graph with_loops(Graph graph, const std::vector<int64_t>& outputs) {
  Graph plain = with_needed_nodes(without_copies(std::move(graph)), outputs);
  return LoopMaker(with_constants_first(std::move(plain))).run(outputs);
}

size_t operators(const Graph& graph) {
  size_t count = graph.nodes.size();
  for (const Node& node : graph.nodes) {
    count += node.loop == nullptr ? 0 : node.loop->body.size();
  }
  return count;
}

std::string loops_text(const Graph& graph) {
  std::vector<std::string> texts;
  for (const Node& node : graph.nodes) {
    if (node.loop != nullptr) {
      texts.push_back(
          std::to_string(node.loop->repetitions) + " x " + std::to_string(node.loop->body.size())
      );
    }
  }
  return join(texts, ", ");
}

} // namespace mh::program
