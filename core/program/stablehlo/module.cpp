#include "core/program/stablehlo/module.hpp"

#include "core/base/text.hpp"
#include "core/program/stablehlo/lowering.hpp"
#include "megahost/error.hpp"

#include <set>

namespace mh::program::stablehlo {

namespace {

void require_lowerings(const Graph& graph) {
  std::set<std::string> missing;
  for (const Node& node : graph.nodes) {
    if (!node.op.empty() && find_lowering(node.op) == nullptr) {
      missing.insert(node.op);
    }
  }
  if (!missing.empty()) {
    throw Error(
        "the step calls operators that no program can hold yet: " +
            join({missing.begin(), missing.end()}, ", "),
        "choose another form of the layer that calls them; megahost recipe explain shows the recipe's "
        "keys"
    );
  }
}

} // namespace

std::string
module_text(const Graph& graph, const std::vector<int64_t>& outputs, const ModuleOptions& options) {
  require_lowerings(graph);
  Writer writer;
  std::map<int64_t, TypedValue> written;
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
  for (const Node& node : graph.nodes) {
    if (node.op.empty()) {
      const TypedValue constant = writer.constant(node.constant);
      written[node.outputs.front()] =
          node.by_rank ? writer.row(constant, written.at(graph.rank)) : constant;
      continue;
    }
    const Call call(writer, graph, node, written);
    find_lowering(node.op)->write(call);
    call.require_all_used();
  }
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
