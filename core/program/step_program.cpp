#include "core/program/step_program.hpp"

#include "core/graph/loops.hpp"
#include "core/graph/merge.hpp"
#include "core/program/collectives.hpp"
#include "core/program/dropout.hpp"
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
  Graph graph = with_needed_nodes(recorded, one.outputs, one.inputs);
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

/// One stage of all its ranks.
StageProgram
stage_program(const std::vector<RecordedRank>& ranks, const StepProgramOptions& options) {
  const RecordedRank& first = ranks.front();
  StageProgram stage{.turns = first.turns, .tensors = first.tensors, .carried = first.carried};
  for (const RecordedRank& rank : ranks) {
    stage.offsets.push_back(rank.offsets);
  }
  for (size_t i = 0; i < first.modules.size(); ++i) {
    stage.modules.push_back(module_of(ranks, i, options));
  }
  if (options.narrow) {
    for (Module& module : stage.modules) {
      narrow_ports(module.inputs);
      narrow_ports(module.outputs);
    }
    narrow_ports(stage.tensors);
    narrow_ports(stage.carried);
  }
  return stage;
}

bool has_loops(const StageProgram& stage) {
  return std::ranges::any_of(stage.modules, [](const Module& one) { return !one.loops.empty(); });
}

void add_new(std::vector<std::string>& ret_all, const std::vector<std::string>& more) {
  for (const std::string& one : more) {
    if (std::ranges::find(ret_all, one) == ret_all.end()) {
      ret_all.push_back(one);
    }
  }
}

nlohmann::ordered_json port_json(const Port& port) {
  nlohmann::ordered_json json{
      {"name", port.name}, {"type", stablehlo::element_type(port.dtype)}, {"shape", port.sizes}};
  if (port.from) {
    json["from"] = {{"stage", port.from->stage}, {"output", port.from->name}};
  }
  return json;
}

nlohmann::ordered_json ports_json(const std::vector<Port>& ports) {
  auto json = nlohmann::ordered_json::array();
  for (const Port& port : ports) {
    json.push_back(port_json(port));
  }
  return json;
}

nlohmann::ordered_json module_json(const Module& module, const std::string& file) {
  nlohmann::ordered_json json{
      {"file", file}, {"runs", module.per_microbatch ? "for each microbatch" : "once"}};
  json["inputs"] = ports_json(module.inputs);
  for (const auto& [input, output] : donated(module)) {
    json["inputs"][input]["output"] = output;
  }
  json["outputs"] = ports_json(module.outputs);
  return json;
}

/// A stage's tensors and modules.
void add_stage(const StepProgram& program, size_t number, nlohmann::ordered_json& ret_json) {
  const StageProgram& stage = program.stages[number];
  ret_json["tensors"] = ports_json(stage.tensors);
  ret_json["carried"] = ports_json(stage.carried);
  ret_json["modules"] = nlohmann::ordered_json::array();
  for (const Module& module : stage.modules) {
    ret_json["modules"].push_back(module_json(module, program.file_of(number, module)));
  }
}

/// "forward 3" of each turn, in order.
nlohmann::ordered_json turns_json(const StageProgram& stage) {
  auto json = nlohmann::ordered_json::array();
  for (const ModuleTurn& turn : stage.turns) {
    const Module& module = stage.modules[turn.module];
    const std::string microbatch = " " + std::to_string(turn.microbatch);
    json.push_back(module.name + (module.per_microbatch ? microbatch : ""));
  }
  return json;
}

} // namespace

std::set<std::string> StageProgram::of_microbatches() const {
  std::set<std::string> names;
  for (const Module& module : modules) {
    for (const auto* ports : {&module.inputs, &module.outputs}) {
      for (const Port& port : *ports) {
        if (module.per_microbatch && (port.from || ports == &module.outputs)) {
          names.insert(port.name);
        }
      }
    }
  }
  for (const Port& port : carried) {
    names.erase(port.name);
  }
  return names;
}

std::vector<std::vector<std::string>> StageProgram::dropped_after(const std::set<std::string>& kept
) const {
  const std::set<std::string> of_one = of_microbatches();
  std::set<std::string> of_step = kept; // read later, or going on
  std::map<int64_t, std::set<std::string>> of_microbatch;
  for (const auto* ports : {&tensors, &carried}) {
    for (const Port& port : *ports) {
      of_step.insert(port.name);
    }
  }
  std::vector<std::vector<std::string>> dropped(turns.size());
  for (size_t t = turns.size(); t-- > 0;) {
    const Module& module = modules[turns[t].module];
    for (const auto* ports : {&module.inputs, &module.outputs}) {
      for (const Port& port : *ports) {
        auto& names = of_one.contains(port.name) ? of_microbatch[turns[t].microbatch] : of_step;
        if (names.insert(port.name).second) {
          dropped[t].push_back(port.name);
        }
      }
    }
  }
  return dropped;
}

std::vector<StepNumber> StepProgram::numbers() const {
  std::vector<StepNumber> losses;
  StepNumber norm;
  for (size_t stage = 0; stage < stages.size(); ++stage) {
    for (const Port& port : stages[stage].modules.back().outputs) {
      const auto known =
          std::ranges::find(losses, port.name, [](const StepNumber& one) { return one.port.name; });
      if (known != losses.end()) {
        known->stages.push_back(stage);
      } else if (port.name.starts_with("loss.")) {
        losses.push_back({port, {stage}});
      } else if (port.name == "gradient_norm" && stage == 0) { // all have the same
        norm = {port, {stage}};
      }
    }
  }
  std::ranges::stable_partition(losses, [this](const StepNumber& one) {
    return std::ranges::find(main_losses, one.port.name.substr(5)) != main_losses.end();
  });
  losses.push_back(std::move(norm));
  return losses;
}

std::string StepProgram::file_of(size_t stage, const Module& module) const {
  const std::string prefix = stages.size() == 1 ? "" : "stage" + std::to_string(stage) + ".";
  return prefix + module.name + ".mlir";
}

bool asks_for_scan(const Recipe& recipe) {
  const Value* scan = recipe.device.options.find("scan");
  return scan != nullptr && scan->as_boolean();
}

StepProgram step_program(const Recipe& recipe, Host& host, const StepProgramOptions& options) {
  const MeshShape shape = mesh_shape(recipe, recipe.parallel.ranks());
  StepProgram program;
  program.data.resize(static_cast<size_t>(shape.world()));
  for (const auto& numbers : ranks_of_stages(shape, recipe.parallel.order)) {
    std::vector<RecordedRank> ranks;
    for (const int64_t rank : numbers) {
      RecordedRank& one = ranks.emplace_back(record_step(recipe, host, options, shape, rank));
      program.data[static_cast<size_t>(rank)] = std::move(one.data);
    }
    const RecordedRank& first = ranks.front();
    program.microbatches = first.microbatches;
    program.data_ranks = first.data_ranks;
    add_new(program.counted, first.counted);
    add_new(program.main_losses, first.main_losses);
    StageProgram& stage = program.stages.emplace_back(stage_program(ranks, options));
    stage.ranks = numbers;
  }
  if (options.scan && std::ranges::none_of(program.stages, has_loops)) {
    TORCH_WARN("scan: no three layers that follow each other are alike, so that none are a loop");
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
  json["ranks"] = program.ranks();
  json["microbatches"] = program.microbatches;
  json["counted"] = program.counted;
  if (program.stages.size() == 1) {
    add_stage(program, 0, json);
    return json.dump(2) + "\n";
  }
  json["stages"] = nlohmann::ordered_json::array();
  for (size_t number = 0; number < program.stages.size(); ++number) {
    nlohmann::ordered_json stage{{"ranks", program.stages[number].ranks}};
    add_stage(program, number, stage);
    stage["turns"] = turns_json(program.stages[number]);
    json["stages"].push_back(std::move(stage));
  }
  return json.dump(2) + "\n";
}

} // namespace mh::program
