#include "core/program/step_program.hpp"

#include "core/program/collectives.hpp"
#include "core/program/merge.hpp"
#include "core/program/recorder.hpp"
#include "core/program/stablehlo/module.hpp"
#include "core/program/stablehlo/writer.hpp"
#include "core/step/sample_arrays.hpp"
#include "core/train/session.hpp"
#include "megahost/error.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/clamp_max.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/where.h>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <map>
#include <utility>

namespace mh::program {

namespace {

using at::Tensor;

/// The factor of gradients that brings their norm down to `clip`; see mh::clip_factor.
Tensor clip_factor_of(const Tensor& norm, double clip) {
  const Tensor wide = norm.to(at::kDouble);
  return clip > 0 ? at::clamp_max(clip / (wide + 1e-6), 1.0) : at::ones_like(wide);
}

std::string array_input(size_t microbatch, const std::string& name) {
  return "microbatch." + std::to_string(microbatch) + "." + name;
}

/// The result of one rank's recording.
struct RecordedRank {
  StepProgram program; ///< without a module
  Graph graph;
  std::vector<int64_t> outputs;
  int64_t rank_input = -1;
};

class StepRecorder {
public:
  StepRecorder(
      const Recipe& recipe,
      Host& host,
      const StepProgramOptions& options,
      const MeshShape& shape,
      int64_t rank
  )
      : microbatches_(options.microbatches)
      , mesh_(recorded_mesh(shape, rank, recipe.parallel.order)) {
    SessionOptions session;
    session.mesh = &mesh_;
    session.initialise = false;
    session.dtype = options.dtype;
    session.planned_for = at::kCPU;
    session_ = make_session(recipe, host, session);
    if (!session_->optimizer->takes_tensors()) {
      throw Error(
          "optimizer.use is \"" + recipe.optimizer.use +
              "\", whose update reads its numbers on the host, where a program of the whole step "
              "has none",
          "set optimizer.use to one that takes them as tensors (megahost plugins)"
      );
    }
    session_->corpus = blank_samples(session_->arrays);
    session_->allocate_gradients();
    weights_ = std::make_unique<Weights>(
        *session_->gradients, *session_->optimizer, weight_options(recipe, session_->mesh)
    );
  }

  RecordedRank run() && {
    take_tensors();
    const std::vector<Batch> batches = take_batches();
    const Update update = take_numbers();
    step(batches, update);
    return std::move(*this).finish();
  }

private:
  Tensor input(const std::string& name, const Tensor& like) {
    program_.inputs.push_back({name, like.scalar_type(), like.sizes().vec()});
    return recorder_.input(like.sizes(), like.scalar_type());
  }

  void output(const std::string& name, const Tensor& value) {
    program_.outputs.push_back({name, value.scalar_type(), value.sizes().vec()});
    outputs_.push_back(recorder_.value_of(value));
  }

  void take_tensors() {
    const at::NoGradGuard no_grad;
    for (const Weights::Stored& stored : weights_->stored()) {
      before_.push_back(input(stored.name, stored.data));
      offsets_.push_back(stored.piece->offset);
      Tensor(stored.data).copy_(before_.back());
    }
    program_.tensors = before_.size();
    weights_->publish();
  }

  std::vector<Batch> take_batches() {
    auto layout = session_->layout();
    layout.microbatches = microbatches_.value_or(layout.microbatches);
    auto batches = load_batches(*session_->corpus, Split::train, 0, layout);
    for (size_t m = 0; m < batches.size(); ++m) {
      for (auto& [name, array] : batches[m].arrays) {
        array = input(array_input(m, name), array);
      }
    }
    return batches;
  }

  Update take_numbers() {
    const Tensor number = at::empty({}, at::TensorOptions(at::kMeta).dtype(at::kDouble));
    Update update;
    update.lr = Number(input("optimizer.lr", number));
    weights_->set_weight_decay(Number(input("optimizer.weight_decay", number)));
    update.step = Number(input("optimizer.step", number));
    update.seed = static_cast<uint64_t>(session_->recipe.train.seed);
    if (mesh_.world() > 1) {
      const Tensor rank = at::empty({}, at::TensorOptions(at::kMeta).dtype(at::kInt));
      rank_input_ = recorder_.value_of(input("rank", rank));
    }
    return update;
  }

  void step(const std::vector<Batch>& batches, Update update) {
    const at::AutoGradMode with_grad(true);
    const Passes passes = session_->passes();
    auto& gradients = *session_->gradients;
    gradients.begin(static_cast<int64_t>(batches.size()));
    const LossSums sums = execute(
        passes,
        batches,
        training_instructions(passes, batches),
        {.seed = update.seed, .dropout = true}
    );
    const at::NoGradGuard no_grad;
    gradients.finish();
    const Tensor norm = gradients.squared_norm().sqrt();
    Tensor finite = at::isfinite(norm);
    losses_ = sums.means();
    for (const auto& [name, over, mean] : losses_) {
      if (!over.empty() && std::find(program_.counted.begin(), program_.counted.end(), over) ==
                               program_.counted.end()) {
        program_.counted.push_back(over);
      }
      finite = finite.logical_and(at::isfinite(mean));
    }
    update.gradient_scale = Number(clip_factor_of(norm, session_->recipe.optimizer.clip_grad));
    weights_->update(*session_->optimizer, update);
    gradients.share_parameters();
    session_->model->end_step(session_->mesh);
    norm_ = norm;
    for (size_t i = 0; i < before_.size(); ++i) {
      const auto& stored = weights_->stored()[i];
      output(stored.name, at::where(finite, stored.data, before_[i]));
    }
  }

  RecordedRank finish() && {
    for (const auto& [name, over, mean] : losses_) {
      output("loss." + name, mean);
    }
    output("gradient_norm", norm_);
    program_.offsets = {offsets_};
    return {std::move(program_), std::move(recorder_).graph(), outputs_, rank_input_};
  }

  std::optional<int64_t> microbatches_;
  Mesh mesh_;
  GraphRecorder recorder_; // before all that makes tensors
  std::unique_ptr<Session> session_;
  std::unique_ptr<Weights> weights_;
  StepProgram program_;
  std::vector<Tensor> before_; // the tensors of a checkpoint as they came
  std::vector<std::vector<int64_t>> offsets_;
  std::vector<int64_t> outputs_;
  int64_t rank_input_ = -1;
  std::vector<LossSums::Mean> losses_;
  Tensor norm_;
};

nlohmann::ordered_json port_json(const Port& port) {
  return {
      {"name", port.name}, {"type", stablehlo::element_type(port.dtype)}, {"shape", port.sizes}};
}

} // namespace

StepProgram step_program(const Recipe& recipe, Host& host, const StepProgramOptions& options) {
  const MeshShape shape = mesh_shape(recipe, recipe.parallel.ranks());
  if (shape.pp > 1) {
    const std::string stages = "parallel." + recipe.parallel.word(MeshAxis::pp);
    throw Error(
        stages + " is " + std::to_string(shape.pp) +
            ", and a program of the whole step has one stage",
        "set " + stages + " to 1"
    );
  }
  std::vector<RecordedRank> ranks;
  for (int64_t rank = 0; rank < shape.world(); ++rank) {
    ranks.push_back(StepRecorder(recipe, host, options, shape, rank).run());
  }
  StepProgram program = std::move(ranks.front().program);
  const std::vector<int64_t> outputs = ranks.front().outputs;
  const int64_t rank_input = ranks.front().rank_input;
  std::vector<Graph> graphs;
  for (auto& [other, graph, of_outputs, input] : ranks) {
    graphs.push_back(with_needed_nodes(std::move(graph), of_outputs));
    if (graphs.size() > 1) {
      program.offsets.push_back(std::move(other.offsets.front()));
    }
  }
  std::map<size_t, size_t> donated;
  for (size_t i = 0; i < program.tensors; ++i) {
    donated[i] = i;
  }
  program.ranks = shape.world();
  const Graph graph =
      program.ranks == 1 ? std::move(graphs.front()) : merge_ranks(std::move(graphs), rank_input);
  program.operators = graph.nodes.size();
  program.module =
      stablehlo::module_text(graph, outputs, {.ranks = program.ranks, .donated = donated});
  return program;
}

std::map<std::string, Tensor>
step_arrays(std::span<const Batch> microbatches, const StepProgram& program) {
  std::map<std::string, double> factors;
  for (const std::string& name : program.counted) {
    double sum = 0, elements = 0;
    for (const Batch& batch : microbatches) {
      sum += batch.arrays.at(name).sum(at::kDouble).item<double>();
      elements += static_cast<double>(batch.arrays.at(name).numel());
    }
    factors[name] = sum > 0 ? elements / sum : 0;
  }
  std::map<std::string, Tensor> arrays;
  for (size_t m = 0; m < microbatches.size(); ++m) {
    for (const auto& [name, array] : microbatches[m].arrays) {
      const auto factor = factors.find(name);
      const bool whole = factor == factors.end() || factor->second == 1;
      arrays[array_input(m, name)] = whole ? array : array * factor->second;
    }
  }
  return arrays;
}

std::string ports_json(const StepProgram& program) {
  nlohmann::ordered_json json;
  json["ranks"] = program.ranks;
  json["counted"] = program.counted;
  for (const auto& [key, ports] :
       {std::pair{"inputs", &program.inputs}, {"outputs", &program.outputs}}) {
    json[key] = nlohmann::ordered_json::array();
    for (size_t i = 0; i < ports->size(); ++i) {
      auto port = port_json((*ports)[i]);
      if (i < program.tensors && ports == &program.inputs) {
        port["output"] = i;
      }
      json[key].push_back(std::move(port));
    }
  }
  return json.dump(2) + "\n";
}

} // namespace mh::program
