#include "core/program/step_recorder.hpp"

#include "core/program/collectives.hpp"
#include "core/program/cut.hpp"
#include "core/program/dropout.hpp"
#include "core/program/module_recorder.hpp"
#include "core/program/recorder.hpp"
#include "core/program/stage_transfers.hpp"
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
#include <ATen/ops/where.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>

namespace mh::program {

namespace {

using at::Tensor;

/// The factor of gradients that brings their norm down to `clip`; see mh::clip_factor.
Tensor clip_factor_of(const Tensor& norm, double clip) {
  const Tensor wide = norm.to(at::kDouble);
  return clip > 0 ? at::clamp_max(clip / (wide + 1e-6), 1.0) : at::ones_like(wide);
}

Tensor scalar_of(at::ScalarType dtype) {
  return at::empty({}, at::TensorOptions(at::kMeta).dtype(dtype));
}

const std::string& name_of(const Parameter& parameter) {
  return parameter.pieces.front().name;
}

class StepRecorder {
public:
  StepRecorder(
      const Recipe& recipe,
      Host& host,
      const StepProgramOptions& options,
      const MeshShape& shape,
      int64_t rank
  )
      : modules_(recorder_)
      , transfers_(
            modules_,
            static_cast<int64_t>(stage_of(ranks_of_stages(shape, recipe.parallel.order), rank)),
            shape.pp
        )
      , mesh_(recorded_mesh(shape, rank, recipe.parallel.order, transfers_)) {
    // Data-parallel ranks keep ranges of rows, whichever the stage of ZeRO: a program has all that
    // it gathers, and the compiler says how long.
    const WeightOptions::Rows rows =
        recipe.parallel.zero > 0
            ? WeightOptions::Rows{mesh_.coordinate(MeshAxis::dp), mesh_.size(MeshAxis::dp)}
            : WeightOptions::Rows{};
    Recipe unsharded = recipe;
    unsharded.parallel.zero = 0;
    unsharded.parallel.bucket_size = 1; // each leaf has one of its own
    SessionOptions session;
    session.mesh = &mesh_;
    session.initialise = false;
    session.dtype = options.dtype;
    session.planned_for = at::kCPU;
    session_ = make_session(unsharded, host, session);
    require_recordable(recipe, options, rows);
    session_->corpus = blank_samples(session_->arrays);
    session_->allocate_gradients();
    WeightOptions weights = weight_options(recipe, session_->mesh);
    weights.rows = rows;
    weights_ = std::make_unique<Weights>(*session_->gradients, *session_->optimizer, weights);
    layout_ = session_->layout();
    layout_.microbatches = options.microbatches.value_or(layout_.microbatches);
    made_.microbatches = layout_.microbatches;
    if (mesh_.world() > shape.pp) {
      rank_ = recorder_.input({}, at::kInt);
    }
  }

  RecordedRank run() && {
    note_rows();
    open();
    const size_t opened = modules_.all().size();
    if (stages() > 1) {
      stage_passes();
    } else {
      pass();
    }
    const size_t passed = modules_.all().size();
    close();
    note_turns(opened, passed);
    if (rank_.defined()) {
      made_.rank = recorder_.value_of(rank_);
    }
    made_.modules = std::move(modules_.all());
    made_.graph = std::move(recorder_).graph();
    if (stages() > 1) {
      const std::span<RecordedModule> all(made_.modules);
      cut(made_.graph, all.subspan(opened, passed - opened));
      cut(made_.graph, all.subspan(passed));
    }
    if (made_.rank >= 0) {
      for (RecordedModule& one : made_.modules) {
        one.module.inputs.push_back({"rank", at::kInt, {}});
        one.inputs.push_back(made_.rank);
      }
    }
    return std::move(made_);
  }

private:
  void require_recordable(
      const Recipe& recipe, const StepProgramOptions& options, const WeightOptions::Rows& rows
  ) const {
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
  }

  [[nodiscard]] int64_t stages() const { return mesh_.size(MeshAxis::pp); }

  Tensor input(const std::string& name, const Tensor& like) { return modules_.input(name, like); }

  void output(const std::string& name, const Tensor& value) { modules_.output(name, value); }

  /// The tensors of a checkpoint as inputs, which weights and states become.
  std::vector<Tensor> take_tensors() {
    const at::NoGradGuard no_grad;
    for (const Parameter& parameter : parameters()) {
      parameter.value.detach().zero_(); // its earlier values are read nowhere
    }
    std::vector<Tensor> given;
    for (const Weights::Stored& stored : weights_->stored()) {
      given.push_back(input(stored.name, stored.data));
      Tensor(stored.data).copy_(given.back());
    }
    return given;
  }

  /// Whether passes compute with a tensor of a checkpoint as it is.
  bool is_stored(const Parameter& parameter) const {
    const auto& all = weights_->stored();
    const auto found = std::ranges::find(all, name_of(parameter), &Weights::Stored::name);
    return parameter.pieces.size() == 1 && found != all.end() &&
           found->data.sizes() == parameter.value.sizes() &&
           found->data.scalar_type() == parameter.value.scalar_type() &&
           !session_->optimizer->keeps_other_weights();
  }

  std::deque<Parameter>& parameters() { return session_->model->parameters().all(); }

  void open() {
    modules_.begin("open");
    (void)take_tensors();
    made_.tensors = modules_.last().inputs;
    for (const Weights::Stored& stored : weights_->stored()) {
      made_.offsets.push_back(stored.piece->offset);
    }
    weights_->publish();
    gather_rows();
    for (const Parameter& parameter : parameters()) {
      if (!is_stored(parameter)) {
        output("parameter." + name_of(parameter), parameter.value.detach());
      }
    }
    if (modules_.last().outputs.empty()) {
      modules_.all().pop_back();
    }
  }

  /// All ranks' rows of the parameters of which each has some.
  void gather_rows() {
    const at::NoGradGuard no_grad;
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

  void pass() {
    modules_.begin("pass", /*per_microbatch=*/true);
    begin_passes();
    take_gradients();
    const LossSums sums = run_last(session_->passes());
    give_gradients();
    made_.carried = modules_.last().outputs;
    give_loss_sums(sums);
    made_.carried.push_back({kFailed, at::kBool, {}});
  }

  /// The passes of a stage of several. Gradients belong to the module that adds to them.
  void stage_passes() {
    const std::vector<Instruction> list = instructions(0);
    const auto first = std::ranges::find_if(list, [](const auto& one) { return is_pass(one.op); });
    begin_pass(*first);
    for (const Parameter& parameter : parameters()) {
      const Tensor& sum = parameter.main_grad;
      if (sum.defined()) {
        made_.carried.push_back({gradient_name(parameter), sum.scalar_type(), sum.sizes().vec()});
      }
    }
    begin_passes();
    Passes passes = session_->passes();
    bool begun = false;
    passes.before = [&](const Instruction* one) {
      if (one == nullptr || (is_pass(one->op) && begun)) {
        give_changed_gradients();
      }
      if (one == nullptr) {
        return;
      }
      if (is_pass(one->op)) {
        if (std::exchange(begun, true)) {
          begin_pass(*one);
        }
        note_gradients();
      }
      transfers_.pass(session_->pipeline->args(), *one);
    };
    give_loss_sums(run_last(passes));
    transfers_.stop();
    made_.carried.push_back({kFailed, at::kBool, {}});
  }

  void begin_pass(const Instruction& one) {
    modules_.begin(pass_name(one), /*per_microbatch=*/true);
  }

  /// "forward"; with virtual stages "forward.1".
  [[nodiscard]] std::string pass_name(const Instruction& one) const {
    const bool several = session_->recipe.parallel.virtual_stages > 1;
    return std::string(op_name(one.op)) + (several ? "." + std::to_string(one.chunk) : "");
  }

  /// Inputs of passes, and the microbatch before the one that is recorded, where there are several:
  /// it may leave that one nothing.
  void begin_passes() {
    take_parameters();
    recorder_.set_dropout([this] {
      const Tensor word = scalar_of(at::kInt);
      return DropoutNumbers{
          input("dropout.key_low", word),
          input("dropout.key_high", word),
          input("dropout.sample", word)};
    });
    session_->gradients->begin(layout_.microbatches);
    if (layout_.microbatches > 1) {
      (void)run_microbatch(session_->passes(), 0, [this](const std::string&, const Tensor& array) {
        return modules_.nobodys(array);
      });
    }
  }

  LossSums run_last(const Passes& passes) {
    return run_microbatch(
        passes,
        layout_.microbatches > 1 ? 1 : 0,
        [this](const std::string& name, const Tensor& array) {
          return input("microbatch." + name, array);
        }
    );
  }

  void give_loss_sums(const LossSums& sums) {
    losses_ = sums.means();
    const std::vector<Tensor> own = sums.own();
    for (size_t i = 0; i < own.size(); ++i) {
      const std::string name = "loss_sum." + losses_[i].name;
      output(name, input(name, own[i]) + own[i]);
      made_.carried.push_back(modules_.last().outputs.back());
    }
  }

  /// The parameters, and what else a pass reads of a checkpoint, as inputs.
  void take_parameters() {
    const at::NoGradGuard no_grad;
    for (const Parameter& parameter : parameters()) {
      const std::string prefix = is_stored(parameter) ? "" : "parameter.";
      parameter.value.detach().copy_(input(prefix + name_of(parameter), parameter.value));
    }
    for (const Buffer& buffer : session_->model->parameters().buffers()) {
      Tensor(buffer.value).copy_(input(buffer.piece.name, buffer.value));
    }
  }

  /// Forward and backward pass of one microbatch, whose arrays `as_input` makes of those of others.
  /// It has the same shapes whatever is in them.
  template <class AsInput>
  LossSums run_microbatch(const Passes& passes, int32_t number, const AsInput& as_input) {
    BatchLayout one = layout_;
    one.microbatches = 1;
    Batch batch = std::move(load_batches(*session_->corpus, Split::train, 0, one).front());
    batch.counted.clear();
    for (auto& [name, array] : batch.arrays) {
      array = as_input(name, array);
    }
    const std::vector<Batch> all(static_cast<size_t>(layout_.microbatches), batch);
    const at::AutoGradMode with_grad(true);
    return execute(passes, all, instructions(number), {.seed = 0, .dropout = true});
  }

  /// The instructions of this stage for one microbatch, as the schedule has them for its first.
  [[nodiscard]] std::vector<Instruction> instructions(int32_t microbatch) const {
    if (stages() == 1) {
      return {
          {Instruction::Op::forward, 0, microbatch}, {Instruction::Op::backward, 0, microbatch}};
    }
    std::vector<Instruction> of_one;
    for (Instruction one : all_instructions()) {
      if (one.microbatch == 0) {
        one.microbatch = microbatch;
        of_one.push_back(one);
      }
    }
    return of_one;
  }

  [[nodiscard]] const std::vector<Instruction>& all_instructions() const {
    const auto stage = static_cast<size_t>(mesh_.coordinate(MeshAxis::pp));
    return session_->pipeline->training(layout_.microbatches)[stage];
  }

  /// Notes when modules run: passes as the schedule says.
  void note_turns(size_t opened, size_t passed) {
    const auto& all = modules_.all();
    for (size_t m = 0; m < opened; ++m) {
      made_.turns.push_back({m});
    }
    if (stages() == 1) {
      for (int64_t microbatch = 0; microbatch < layout_.microbatches; ++microbatch) {
        made_.turns.push_back({opened, microbatch});
      }
    } else {
      std::map<std::string, size_t> numbers;
      for (size_t m = opened; m < passed; ++m) {
        numbers[all[m].module.name] = m;
      }
      for (const Instruction& one : all_instructions()) {
        if (is_pass(one.op)) {
          made_.turns.push_back({numbers.at(pass_name(one)), one.microbatch});
        }
      }
    }
    for (size_t m = passed; m < all.size(); ++m) {
      made_.turns.push_back({m});
    }
  }

  /// Notes the rows of each array that this rank sees.
  void note_rows() {
    RankData data{.data_rank = layout_.data_rank};
    BatchLayout whole = layout_;
    whole.tokens = nullptr;
    whole.microbatches = 1;
    const auto batches = load_batches(*session_->corpus, Split::train, 0, whole);
    for (const auto& [name, array] : batches.front().arrays) {
      const Tensor all = at::arange(array.size(0)), own = own_rows(all, name, layout_);
      if (!own.equal(all)) {
        data.rows[name] = own;
      }
    }
    made_.data = std::move(data);
    made_.data_ranks = layout_.data_ranks;
  }

  static std::string gradient_name(const Parameter& parameter) {
    return "gradient." + name_of(parameter);
  }

  /// Inputs that the gradients become.
  void take_gradients() {
    const at::NoGradGuard no_grad;
    session_->gradients->clear();
    for (const Parameter& parameter : parameters()) {
      if (parameter.main_grad.defined()) {
        Tensor(parameter.main_grad).copy_(input(gradient_name(parameter), parameter.main_grad));
      }
    }
  }

  void give_gradients() {
    for (const Parameter& parameter : parameters()) {
      if (parameter.main_grad.defined()) {
        output(gradient_name(parameter), parameter.main_grad.detach());
      }
    }
  }

  /// The gradients as inputs of a pass, and what they are before it. A fused loss adds its weights'
  /// in the forward pass.
  void note_gradients() {
    before_.clear();
    take_gradients();
    for (const Parameter& parameter : parameters()) {
      if (parameter.main_grad.defined()) {
        before_[&parameter] = recorder_.value_of(parameter.main_grad.detach());
      }
    }
  }

  void give_changed_gradients() {
    for (const auto& parameter : parameters()) {
      const auto before = before_.find(&parameter);
      if (before != before_.end() &&
          recorder_.value_of(parameter.main_grad.detach()) != before->second) {
        output(gradient_name(parameter), parameter.main_grad.detach());
      }
    }
  }

  void close() {
    const bool several = stages() > 1;
    modules_.begin(several ? "reduce" : "close");
    transfers_.end_of_step("reduce");
    const at::NoGradGuard no_grad;
    const std::vector<Tensor> before = take_tensors();
    take_gradients();
    std::vector<Tensor> sums;
    for (const auto& [name, over, mean] : losses_) {
      sums.push_back(input("loss_sum." + name, mean));
    }
    const Tensor failed = input(kFailed, scalar_of(at::kBool));
    Update update = take_numbers();

    session_->gradients->finish();
    if (several) { // the sums take over the gradients' memory
      give_gradients();
      modules_.begin("norm");
      take_gradients();
      transfers_.end_of_step("agree");
    }
    const Tensor norm = session_->gradients->squared_norm().sqrt();
    Tensor finite = at::isfinite(norm).logical_and(failed.logical_not());
    std::vector<LossSums::Mean> losses = losses_;
    for (size_t i = 0; i < losses.size(); ++i) {
      losses[i].value = sums[i].clone();
      mesh_.group(MeshAxis::dp).all_reduce(losses[i].value);
      mesh_.group(MeshAxis::cp).all_reduce(losses[i].value);
      finite = finite.logical_and(at::isfinite(losses[i].value));
    }
    if (several) {
      transfers_.end_of_step("close");
      finite = transfers_.sum(finite.logical_not().to(at::kFloat)).eq(0);
    }
    update.gradient_scale = Number(clip_factor_of(norm, session_->recipe.optimizer.clip_grad));
    weights_->update(*session_->optimizer, update);
    session_->gradients->share_parameters();
    session_->model->end_step(session_->mesh);

    for (size_t i = 0; i < before.size(); ++i) {
      const auto& stored = weights_->stored()[i];
      output(stored.name, at::where(finite, stored.data, before[i]));
    }
    session_->gradients->clear();
    give_gradients();
    for (size_t i = 0; i < sums.size(); ++i) {
      output("loss_sum." + losses[i].name, at::zeros_like(sums[i]));
    }
    output(kFailed, finite.logical_not());
    give_losses(std::move(losses));
    output("gradient_norm", norm);
  }

  Update take_numbers() {
    const Tensor number = scalar_of(at::kDouble);
    Update update;
    update.lr = Number(input("optimizer.lr", number));
    weights_->set_weight_decay(Number(input("optimizer.weight_decay", number)));
    update.step = Number(input("optimizer.step", number));
    update.seed = static_cast<uint64_t>(session_->recipe.train.seed);
    return update;
  }

  void give_losses(std::vector<LossSums::Mean> losses) {
    const auto others = std::stable_partition(losses.begin(), losses.end(), [](const auto& one) {
      return !one.over.empty(); // those over items of the data come first, as on the host
    });
    for (auto one = losses.begin(); one != others; ++one) {
      made_.main_losses.push_back(one->name);
    }
    auto& counted = made_.counted;
    for (const auto& [name, over, mean] : losses) {
      if (!over.empty() && std::ranges::find(counted, over) == counted.end()) {
        counted.push_back(over);
      }
      output("loss." + name, mean);
    }
  }

  GraphRecorder recorder_; // before all that makes tensors
  ModuleRecorder modules_;
  RecordedTransfers transfers_;
  Mesh mesh_;
  std::unique_ptr<Session> session_;
  std::unique_ptr<Weights> weights_;
  BatchLayout layout_;
  RecordedRank made_;
  std::vector<LossSums::Mean> losses_;         // names, and what they are counted over
  std::map<const Parameter*, int64_t> before_; // gradients as a pass took them
  Tensor rank_;
};

} // namespace

RecordedRank record_step(
    const Recipe& recipe,
    Host& host,
    const StepProgramOptions& options,
    const MeshShape& shape,
    int64_t rank
) {
  return StepRecorder(recipe, host, options, shape, rank).run();
}

} // namespace mh::program
