#include "core/program/step_program.hpp"

#include "core/program/collectives.hpp"
#include "core/program/dropout.hpp"
#include "core/program/merge.hpp"
#include "core/program/recorder.hpp"
#include "core/program/stablehlo/module.hpp"
#include "core/program/stablehlo/writer.hpp"
#include "core/session/session.hpp"
#include "core/step/sample_arrays.hpp"
#include "megahost/error.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/clamp_max.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/scalar_tensor.h>
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
    // Data-parallel ranks keep ranges of rows, whichever the stage of ZeRO: a program has all that
    // it gathers, and the compiler says how long.
    const WeightOptions::Rows rows =
        recipe.parallel.zero > 0
            ? WeightOptions::Rows{mesh_.coordinate(MeshAxis::dp), mesh_.size(MeshAxis::dp)}
            : WeightOptions::Rows{};
    Recipe unsharded = recipe;
    unsharded.parallel.zero = 0;
    SessionOptions session;
    session.mesh = &mesh_;
    session.initialise = false;
    session.dtype = options.dtype;
    session.planned_for = at::kCPU;
    session_ = make_session(unsharded, host, session);
    if (!session_->optimizer->takes_tensors()) {
      throw Error(
          "optimizer.use is \"" + recipe.optimizer.use +
              "\", whose update reads its numbers on the host, where a program of the whole step "
              "has none",
          "set optimizer.use to one that takes them as tensors (megahost plugins)"
      );
    }
    if (options.narrow && recipe.optimizer.stochastic_rounding) {
      throw Error(
          "optimizer.stochastic_rounding makes random numbers with products of 64 bits, which "
          "device \"" +
              recipe.device.use + "\" has not",
          "set it to false, and let the device round so: NEURON_RT_STOCHASTIC_ROUNDING_EN=1"
      );
    }
    if (rows.count > 1 && session_->optimizer->unit() != Unit::element) {
      throw Error(
          "optimizer \"" + recipe.optimizer.use +
              "\" updates whole matrices, and a program shards rows over data-parallel ranks",
          "do not shard its state, or use an optimizer of single elements"
      );
    }
    for (const Parameter& parameter : session_->model->parameters().all()) {
      for (const Piece& piece : parameter.pieces) {
        if (piece.name.find(".experts.") != std::string::npos && piece.name.ends_with(".bias")) {
          throw Error(
              "experts' biases are in no program yet: " + piece.name,
              "set the model's biases off, as model.bias does"
          );
        }
      }
    }
    session_->corpus = blank_samples(session_->arrays);
    session_->allocate_gradients();
    WeightOptions weights = weight_options(recipe, session_->mesh);
    weights.rows = rows;
    weights_ = std::make_unique<Weights>(*session_->gradients, *session_->optimizer, weights);
  }

  RecordedRank run() && {
    take_tensors();
    const std::vector<Batch> batches = take_batches();
    const Update update = take_numbers();
    recorder_.set_dropout([this] {
      const Tensor word = at::empty({}, at::TensorOptions(at::kMeta).dtype(at::kInt));
      return DropoutNumbers{
          input("dropout.key_low", word),
          input("dropout.key_high", word),
          input("dropout.sample", word)};
    });
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
    gather_rows();
  }

  /// All ranks' rows of the parameters of which each has some.
  void gather_rows() {
    const Group& data = mesh_.group(MeshAxis::dp);
    for (const OwnedPiece& one : weights_->owned()) {
      for (const Piece& piece : one.parameter->pieces) {
        if (piece.name == one.piece.name && piece.shape != one.piece.shape) {
          one.parameter->view(one.parameter->value.detach(), piece)
              .copy_(data.all_gather(one.value, 0));
        }
      }
    }
  }

  std::vector<Batch> take_batches() {
    auto layout = session_->layout();
    layout.microbatches = microbatches_.value_or(layout.microbatches);
    take_rows(layout);
    auto batches = load_batches(*session_->corpus, Split::train, 0, layout);
    for (size_t m = 0; m < batches.size(); ++m) {
      batches[m].counted.clear(); // a program has the same shapes for every batch
      for (auto& [name, array] : batches[m].arrays) {
        array = input(array_input(m, name), array);
      }
    }
    return batches;
  }

  /// Notes the rows of each array that this rank sees.
  void take_rows(const BatchLayout& layout) {
    RankData data{.data_rank = layout.data_rank};
    BatchLayout whole = layout;
    whole.tokens = nullptr;
    whole.microbatches = 1;
    const auto batches = load_batches(*session_->corpus, Split::train, 0, whole);
    for (const auto& [name, array] : batches.front().arrays) {
      const Tensor all = at::arange(array.size(0)), own = own_rows(all, name, layout);
      if (!own.equal(all)) {
        data.rows[name] = own;
      }
    }
    program_.data = {std::move(data)};
    program_.data_ranks = layout.data_ranks;
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
        passes, batches, training_instructions(passes, batches), {.seed = 0, .dropout = true}
    );
    const at::NoGradGuard no_grad;
    gradients.finish();
    const Tensor norm = gradients.squared_norm().sqrt();
    Tensor finite = at::isfinite(norm);
    losses_ = sums.means();
    const auto others = std::stable_partition(losses_.begin(), losses_.end(), [](const auto& one) {
      return !one.over.empty(); // those over items of the data come first, as on the host
    });
    program_.main_losses = static_cast<size_t>(others - losses_.begin());
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
      program.data.push_back(std::move(other.data.front()));
    }
  }
  std::map<size_t, size_t> donated;
  for (size_t i = 0; i < program.tensors; ++i) {
    donated[i] = i;
  }
  program.ranks = shape.world();
  Graph graph =
      program.ranks == 1 ? std::move(graphs.front()) : merge_ranks(std::move(graphs), rank_input);
  if (options.narrow) {
    graph = narrowed(std::move(graph));
    for (auto* ports : {&program.inputs, &program.outputs}) {
      for (Port& port : *ports) {
        port.dtype = narrow(port.dtype);
      }
    }
  }
  program.operators = graph.nodes.size();
  program.module =
      stablehlo::module_text(graph, outputs, {.ranks = program.ranks, .donated = donated});
  return program;
}

std::map<std::string, Tensor>
step_numbers(std::span<const Batch> microbatches, const StepOptions& options, double decay) {
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
        {"dropout.key_high", static_cast<int64_t>(bits >> 32)},
        {"dropout.sample", microbatches.front().samples.front()}}) {
    values[name] = at::scalar_tensor(value, at::kLong); // the program has the low word
  }
  return values;
}

std::map<std::string, Tensor>
step_arrays(std::span<const Batch> microbatches, const StepProgram& program, int64_t rank) {
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
  std::map<std::string, Tensor> arrays;
  for (size_t m = 0; m < microbatches.size() / ranks; ++m) {
    const Batch& batch = microbatches[m * ranks + static_cast<size_t>(data.data_rank)];
    for (const auto& [name, array] : batch.arrays) {
      const auto rows = data.rows.find(name);
      const Tensor own = rows == data.rows.end() ? array : array.index_select(0, rows->second);
      const auto factor = factors.find(name);
      const bool plain = factor == factors.end() || factor->second == 1;
      arrays[array_input(m, name)] = plain ? own : own * factor->second;
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
