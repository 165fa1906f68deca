#include "core/program/step_program.hpp"

#include "core/program/dropout.hpp"
#include "core/program/loops.hpp"
#include "core/program/merge.hpp"
#include "core/program/stablehlo/module.hpp"
#include "core/program/stablehlo/writer.hpp"
#include "core/program/step_recorder.hpp"
#include "core/session/session.hpp"
#include "megahost/error.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/scalar_tensor.h>
#include <c10/util/Exception.h>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <map>
#include <set>
#include <utility>

namespace mh::program {

namespace {

using at::Tensor;

/// The part of a recording that is a module.
///
/// Throws:  mh::Error where it needs what other modules have computed
Graph graph_of(const Graph& recorded, const RecordedModule& one) {
  Graph graph = with_needed_nodes(recorded, one.outputs);
  const std::set<int64_t> given(one.inputs.begin(), one.inputs.end());
  std::set<int64_t> others(recorded.inputs.begin(), recorded.inputs.end());
  std::erase_if(others, [&](int64_t value) { return given.contains(value); });
  for (const Node& node : graph.nodes) {
    for (const auto& values : node.inputs) {
      if (std::ranges::any_of(values, [&](int64_t value) { return others.contains(value); })) {
        throw Error(
            "this step cannot become programs: a layer keeps what it has seen of a microbatch for "
            "others, or for the end of the step",
            "in a mixture of experts, leave `bias` and `global` out of model.balance"
        );
      }
    }
  }
  graph.inputs = one.inputs;
  return graph;
}

std::map<size_t, size_t> donated(const Module& module) {
  std::map<size_t, size_t> pairs;
  for (size_t i = 0; i < module.inputs.size(); ++i) {
    const auto found = std::ranges::find(module.outputs, module.inputs[i].name, &Port::name);
    if (found != module.outputs.end()) {
      pairs[i] = static_cast<size_t>(found - module.outputs.begin());
    }
  }
  return pairs;
}

/// One module of all ranks.
Module module_of(
    const std::vector<RecordedRank>& ranks, size_t number, const StepProgramOptions& options
) {
  const RecordedModule& first = ranks.front().modules.at(number);
  std::vector<Graph> graphs;
  for (const RecordedRank& rank : ranks) {
    graphs.push_back(graph_of(rank.graph, rank.modules.at(number)));
  }
  Graph graph = ranks.size() == 1 ? std::move(graphs.front())
                                  : merge_ranks(std::move(graphs), ranks.front().rank);
  if (options.narrow) {
    graph = narrowed(std::move(graph));
  }
  if (options.scan && first.module.per_microbatch) {
    graph = with_loops(std::move(graph), first.outputs);
  }
  Module module = first.module;
  module.operators = operators(graph);
  module.loops = loops_text(graph);
  module.text = stablehlo::module_text(
      graph,
      first.outputs,
      {.name = module.name, .ranks = static_cast<int64_t>(ranks.size()), .donated = donated(module)}
  );
  return module;
}

void narrow_ports(std::vector<Port>& ret_ports) {
  for (Port& port : ret_ports) {
    port.dtype = narrow(port.dtype);
  }
}

nlohmann::ordered_json port_json(const Port& port) {
  return {
      {"name", port.name}, {"type", stablehlo::element_type(port.dtype)}, {"shape", port.sizes}};
}

} // namespace

std::vector<Port> StepProgram::numbers() const {
  std::vector<Port> numbers;
  for (const Port& port : modules.back().outputs) {
    if (port.name == "gradient_norm" || port.name.starts_with("loss.")) {
      numbers.push_back(port);
    }
  }
  return numbers;
}

bool asks_for_scan(const Recipe& recipe) {
  const Value* scan = recipe.device.options.find("scan");
  return scan != nullptr && scan->as_boolean();
}

StepProgram step_program(const Recipe& recipe, Host& host, const StepProgramOptions& options) {
  const MeshShape shape = mesh_shape(recipe, recipe.parallel.ranks());
  if (shape.pp > 1) {
    const std::string stages = "parallel." + recipe.parallel.word(MeshAxis::pp);
    throw Error(
        stages + " is " + std::to_string(shape.pp) + ", and a step of programs has one stage",
        "set " + stages + " to 1"
    );
  }
  std::vector<RecordedRank> ranks;
  for (int64_t rank = 0; rank < shape.world(); ++rank) {
    ranks.push_back(record_step(recipe, host, options, shape, rank));
  }
  StepProgram program = ranks.front().program;
  program.ranks = shape.world();
  for (size_t rank = 1; rank < ranks.size(); ++rank) {
    program.offsets.push_back(ranks[rank].program.offsets.front());
    program.data.push_back(ranks[rank].program.data.front());
  }
  for (size_t i = 0; i < ranks.front().modules.size(); ++i) {
    Module module = module_of(ranks, i, options);
    if (options.narrow) {
      narrow_ports(module.inputs);
      narrow_ports(module.outputs);
    }
    program.modules.push_back(std::move(module));
  }
  if (options.scan && std::ranges::all_of(program.modules, &std::string::empty, &Module::loops)) {
    TORCH_WARN("scan: no three layers that follow each other are alike, so that none are a loop");
  }
  if (options.narrow) {
    narrow_ports(program.tensors);
    narrow_ports(program.carried);
  }
  return program;
}

std::map<std::string, Tensor> step_numbers(const StepOptions& options, double decay) {
  std::map<std::string, Tensor> values;
  for (const auto& [name, value] :
       {std::pair<const char*, double>{"optimizer.lr", options.update.lr},
        {"optimizer.weight_decay", decay},
        {"optimizer.step", options.update.step}}) {
    values[name] = at::scalar_tensor(value, at::kDouble);
  }
  const uint64_t bits = dropout_bits(options.seed);
  for (const auto& [name, value] :
       {std::pair{"dropout.key_low", static_cast<int64_t>(bits & 0xffffffff)},
        {"dropout.key_high", static_cast<int64_t>(bits >> 32)}}) {
    values[name] = at::scalar_tensor(value, at::kLong); // the program has the low word
  }
  return values;
}

std::vector<std::map<std::string, Tensor>>
microbatch_inputs(std::span<const Batch> microbatches, const StepProgram& program, int64_t rank) {
  std::map<std::string, double> factors;
  for (const std::string& name : program.counted) {
    double sum = 0, elements = 0;
    for (const Batch& batch : microbatches) {
      sum += batch.arrays.at(name).sum(at::kDouble).item<double>();
      elements += static_cast<double>(batch.arrays.at(name).numel());
    }
    factors[name] = sum > 0 ? elements / sum : 0;
  }
  const RankData& data = program.data.at(static_cast<size_t>(rank));
  const auto ranks = static_cast<size_t>(program.data_ranks);
  std::vector<std::map<std::string, Tensor>> all;
  for (size_t first = 0; first < microbatches.size(); first += ranks) {
    auto& inputs = all.emplace_back();
    inputs["dropout.sample"] = at::scalar_tensor(microbatches[first].samples.front(), at::kLong);
    const Batch& batch = microbatches[first + static_cast<size_t>(data.data_rank)];
    for (const auto& [name, array] : batch.arrays) {
      const auto rows = data.rows.find(name);
      const Tensor own = rows == data.rows.end() ? array : array.index_select(0, rows->second);
      const auto factor = factors.find(name);
      const bool plain = factor == factors.end() || factor->second == 1;
      inputs["microbatch." + name] = plain ? own : own * factor->second;
    }
  }
  return all;
}

std::string ports_json(const StepProgram& program) {
  nlohmann::ordered_json json;
  json["ranks"] = program.ranks;
  json["microbatches"] = program.microbatches;
  json["counted"] = program.counted;
  for (const auto& [key, ports] :
       {std::pair{"tensors", &program.tensors}, {"carried", &program.carried}}) {
    json[key] = nlohmann::ordered_json::array();
    for (const Port& port : *ports) {
      json[key].push_back(port_json(port));
    }
  }
  json["modules"] = nlohmann::ordered_json::array();
  for (const Module& module : program.modules) {
    nlohmann::ordered_json one{
        {"file", module.name + ".mlir"},
        {"runs", module.per_microbatch ? "for each microbatch" : "once"}};
    const auto pairs = donated(module);
    for (const auto& [key, ports] :
         {std::pair{"inputs", &module.inputs}, {"outputs", &module.outputs}}) {
      one[key] = nlohmann::ordered_json::array();
      for (size_t i = 0; i < ports->size(); ++i) {
        auto port = port_json((*ports)[i]);
        if (const auto pair = pairs.find(i); pair != pairs.end() && ports == &module.inputs) {
          port["output"] = pair->second;
        }
        one[key].push_back(std::move(port));
      }
    }
    json["modules"].push_back(std::move(one));
  }
  return json.dump(2) + "\n";
}

} // namespace mh::program
