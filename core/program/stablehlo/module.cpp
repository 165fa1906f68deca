#include "core/program/stablehlo/module.hpp"

#include "core/base/text.hpp"
#include "core/program/stablehlo/lowering.hpp"
#include "megahost/error.hpp"

#include <set>

namespace mh::program::stablehlo {

namespace {

void find_missing(const std::vector<Node>& nodes, std::set<std::string>& ret_missing) {
  for (const Node& node : nodes) {
    if (node.loop != nullptr) {
      find_missing(node.loop->body, ret_missing);
    } else if (!node.op.empty() && find_lowering(node.op) == nullptr) {
      ret_missing.insert(node.op);
    }
  }
}

void require_lowerings(const Graph& graph) {
  std::set<std::string> missing;
  find_missing(graph.nodes, missing);
  if (!missing.empty()) {
    throw Error(
        "the step calls operators that no program can hold yet: " +
            join({missing.begin(), missing.end()}, ", "),
        "choose another form of the layer that calls them; megahost recipe explain shows the recipe's "
        "keys"
    );
  }
}

using WrittenValues = std::map<int64_t, TypedValue>;

class GraphWriter {
public:
  GraphWriter(const Graph& graph, Writer& writer, WrittenValues& written)
      : graph_(graph)
      , w_(writer)
      , written_(written) {}

  void write(const std::vector<Node>& nodes) {
    for (const Node& node : nodes) {
      if (node.loop != nullptr) {
        write_loop(node);
      } else if (node.op.empty()) {
        const TypedValue constant = w_.constant(node.constant);
        written_[node.outputs.front()] =
            node.by_rank ? w_.row(constant, written_.at(graph_.rank)) : constant;
      } else {
        const Call call(w_, graph_, node, written_);
        find_lowering(node.op)->write(call);
        call.require_all_used();
      }
    }
  }

private:
  void write_loop(const Node& node) {
    const Loop& loop = *node.loop;
    std::vector<TypedValue> starts;
    for (const Loop::Carried& one : loop.carried) {
      starts.push_back(written_.at(one.start));
    }
    for (const Loop::Stack& one : loop.stacks) {
      const GraphValue& value = graph_.value(one.stack);
      starts.push_back(w_.constant(0, value.dtype, value.sizes));
    }
    const auto results = w_.repeat(
        loop.repetitions,
        starts,
        [&](const TypedValue& round, const std::vector<TypedValue>& before) {
          return write_body(loop, round, before);
        }
    );
    for (size_t i = 0; i < results.size(); ++i) {
      if (node.outputs[i] >= 0) {
        written_[node.outputs[i]] = results[i];
      }
    }
  }

  std::vector<TypedValue>
  write_body(const Loop& loop, const TypedValue& round, const std::vector<TypedValue>& before) {
    for (size_t i = 0; i < loop.carried.size(); ++i) {
      written_[loop.carried[i].inside] = before[i];
    }
    for (const Loop::Row& row : loop.rows) {
      written_[row.inside] = w_.row(written_.at(row.stack), index(row, round));
    }
    write(loop.body);
    std::vector<TypedValue> made;
    for (const Loop::Carried& one : loop.carried) {
      made.push_back(written_.at(one.next));
    }
    for (size_t i = 0; i < loop.stacks.size(); ++i) {
      const TypedValue value = written_.at(loop.stacks[i].inside);
      Sizes sizes = value.sizes;
      sizes.insert(sizes.begin(), 1);
      made.push_back(
          w_.replace_at(before[loop.carried.size() + i], 0, round, w_.reshape(value, sizes))
      );
    }
    return made;
  }

  TypedValue index(const Loop::Row& row, const TypedValue& round) {
    const std::string op = row.step > 0 ? "add" : "subtract";
    return row.first == 0 && row.step > 0
               ? round
               : w_.binary(op, w_.constant(row.first, round.dtype), round);
  }

  const Graph& graph_;
  Writer& w_;
  WrittenValues& written_;
};

} // namespace

std::string
module_text(const Graph& graph, const std::vector<int64_t>& outputs, const ModuleOptions& options) {
  require_lowerings(graph);
  Writer writer;
  WrittenValues written;
  std::vector<std::string> arguments, names, types;
  for (size_t i = 0; i < graph.inputs.size(); ++i) {
    const GraphValue& value = graph.value(graph.inputs[i]);
    const TypedValue input = Writer::argument(i, value.dtype, value.sizes);
    written[graph.inputs[i]] = input;
    const auto donated = options.donated.find(i);
    arguments.push_back(
        input.name + ": " + type_text(input) +
        (donated == options.donated.end()
             ? ""
             : " {tf.aliasing_output = " + std::to_string(donated->second) + " : i32}")
    );
  }
  GraphWriter(graph, writer, written).write(graph.nodes);
  for (const int64_t output : outputs) {
    const TypedValue& result = written.at(output);
    names.push_back(result.name);
    types.push_back(type_text(result));
  }
  return "module @" + options.name +
         " attributes {mhlo.num_replicas = " + std::to_string(options.ranks) +
         " : i32, mhlo.num_partitions = 1 : i32} {\n"
         "  func.func public @main(\n    " +
         join(arguments, ",\n    ") + "\n  ) -> (" + join(types, ", ") + ") {\n" + writer.text() +
         "    return " + join(names, ", ") + " : " + join(types, ", ") + "\n  }\n}\n";
}

} // namespace mh::program::stablehlo
