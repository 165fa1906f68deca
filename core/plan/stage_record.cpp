#include "core/plan/stage_record.hpp"

#include "core/mesh/layout.hpp"
#include "core/plan/compose.hpp"
#include "core/plan/sequential.hpp"
#include "core/plan/shapes_missing.hpp"
#include "core/step/batches.hpp"
#include "core/step/sample_arrays.hpp"
#include "core/step/step.hpp"
#include "megahost/error.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_like.h>
#include <ATen/record_function.h>

#include <algorithm>
#include <functional>
#include <set>
#include <utility>

namespace mh {

namespace {

using Op = Instruction::Op;

/// The rank of stage `stage` that is first along every other axis.
int64_t rank_of(const MeshShape& shape, const std::string& order, int64_t stage) {
  return mesh_groups(shape, MeshAxis::pp, order).front()[static_cast<size_t>(stage)];
}

class StageRecorder {
public:
  StageRecorder(
      const PlanTarget& target, int64_t stage, const std::vector<Keep>& keep, RecordedStep& step
  )
      : target_(target)
      , step_(step)
      , recorder_(target.device)
      , mesh_(alone(
            step.shape,
            rank_of(step.shape, target.recipe.parallel.order, stage),
            {.order = target.recipe.parallel.order, .listener = &recorder_}
        )) {
    record_.stage = stage;
    SessionOptions options;
    options.initialise = false;
    options.mesh = &mesh_;
    options.planned_for = target.device;
    options.keep = keep;
    session_ = make_session(target.recipe, target.host, options);
    session_->corpus = blank_samples(session_->arrays);
    session_->allocate_gradients(); // which moves the parameters
    record_.gradients = session_->gradients->bytes();
    record_.parameters = recorder_.memory().used() - record_.gradients;
    weights_ = std::make_unique<Weights>(
        *session_->gradients, *session_->optimizer, weight_options(target.recipe, mesh_)
    );
    record_.state = recorder_.memory().used() - record_.parameters - record_.gradients;
    record_.own_masters =
        target.recipe.precision == "fp32" && !session_->optimizer->keeps_other_weights();
    step.model_flops = session_->flops_per_sample();
    step.tokens = session_->tokens_per_sample();
    step.parameters = session_->model->global_elements();
  }

  StageRecord run(int64_t microbatches) && {
    if (microbatches == 0) {
      return std::move(record_);
    }
    train(1, std::nullopt); // learns how often each gradient is added to
    bool whole = false, split = false;
    for (const auto& one : step_.lists[static_cast<size_t>(record_.stage)]) {
      whole = whole || one.op == Op::backward;
      split = split || one.op == Op::backward_input;
    }
    for (const bool splits : {false, true}) {
      if (splits ? split : whole) {
        train(microbatches, splits);
      }
    }
    for (const auto& scope : recorder_.scopes()) {
      if (scope.name == "optimizer") {
        record_.optimizer_event = scope.event - closing_event_;
      }
    }
    record_.collectives = recorder_.collectives();
    return std::move(record_);
  }

private:
  /// They are in a CPU's memory from the start, and nothing is copied.
  [[nodiscard]] std::vector<Batch> batches(int64_t microbatches) {
    auto layout = session_->layout();
    layout.microbatches = microbatches;
    auto all = load_batches(*session_->corpus, Split::train, 0, layout);
    if (target_.device == at::kCPU) {
      record_.batches = 0;
      for (const auto& [name, array] : all.front().arrays) {
        record_.batches += 2 * step_.args.microbatches * static_cast<int64_t>(array.nbytes());
      }
      const UncountedMemory uncounted;
      for (auto& batch : all) {
        for (auto* arrays : {&batch.arrays, &batch.counted}) {
          for (auto& [name, array] : *arrays) {
            array = at::empty_like(array, array.options().device(at::kMeta));
          }
        }
      }
    }
    return all;
  }

  /// Collectives that go on when a step is over.
  [[nodiscard]] std::vector<size_t> under_way() const {
    std::set<size_t> numbers;
    for (const auto& event : recorder_.events()) {
      if (event.kind == PlanEvent::Kind::start) {
        numbers.insert(event.collective);
      } else if (event.kind == PlanEvent::Kind::wait) {
        numbers.erase(event.collective);
      }
    }
    return {numbers.begin(), numbers.end()};
  }

  void train(int64_t microbatches, std::optional<bool> splits) {
    record_.arriving = under_way();
    const at::AutoGradMode grad(true);
    auto args = step_.args;
    args.microbatches = microbatches;
    const Pipeline pipeline = sequential_pipeline(args, splits.value_or(false));
    Passes passes = session_->passes();
    passes.pipeline = step_.args.stages > 1 ? &pipeline : nullptr;
    passes.imbalance = target_.imbalance;
    if (splits) {
      passes.before = [&](const Instruction* next) { mark(next, microbatches); };
    }
    const auto data = batches(microbatches);
    (void)train_step(
        passes,
        *weights_,
        *session_->optimizer,
        data,
        {.clip = target_.recipe.optimizer.clip_grad,
         .update =
             {.step = 2, // in the first some optimizers begin
              .lr = target_.recipe.optimizer.lr},
         .count_zeros = target_.recipe.log.num_zeros,
         .accept = [](const StepResult&) { return true; }}
    );
    if (splits) {
      finish(now_);
    }
  }

  /// Ends the record of what ran since the mark before.
  void finish(PassRecord* record) {
    auto& memory = recorder_.memory();
    if (record != nullptr) {
      record->net = memory.used() - used_;
      record->peak = memory.peak() - used_;
      record->working = memory.working_peak() - used_;
      const auto& events = recorder_.events();
      record->events.assign(events.begin() + static_cast<std::ptrdiff_t>(event_), events.end());
      for (const auto& event : record->events) {
        record->flops += event.executed();
        if (event.kind == PlanEvent::Kind::start) {
          record->sent += recorder_.collectives()[event.collective].handed_over;
        }
      }
    }
    now_ = nullptr;
  }

  void mark(const Instruction* next, int64_t microbatches) {
    finish(now_);
    if (next != nullptr) {
      now_ = &record_.passes[PassKey::of(*next, microbatches)];
    } else {
      now_ = &record_.closing;
      closing_event_ = recorder_.events().size();
    }
    *now_ = PassRecord();
    recorder_.memory().restart_peak();
    used_ = recorder_.memory().used();
    event_ = recorder_.events().size();
  }

  PlanTarget target_;
  RecordedStep& step_;
  PlanRecorder recorder_;
  Mesh mesh_;
  StageRecord record_;
  std::unique_ptr<Session> session_;
  std::unique_ptr<Weights> weights_;
  PassRecord* now_ = nullptr; // what runs
  int64_t used_ = 0;          // when it began
  size_t event_ = 0, closing_event_ = 0;
};

/// A text that differs between stages that differ: their chunks' blocks, and what these keep.
std::string signature(
    const RecordedStep& step,
    const std::vector<double>& costs,
    const std::vector<Keep>& keep,
    int64_t stage
) {
  std::string text;
  for (const auto& [everything, joined, redo] : keep) {
    text += everything ? "whole " : joined ? "joined " : "again ";
    for (const auto& part : redo) {
      text += part + " ";
    }
  }
  if (step.layout.empty()) {
    return text;
  }
  size_t block = 0;
  for (size_t c = 0; c < step.layout.size(); ++c) {
    const auto& chunk = step.layout[c];
    const auto count =
        static_cast<size_t>(chunk.layers + (chunk.embedding ? 1 : 0) + (chunk.head ? 1 : 0));
    if (step.args.stage_of(static_cast<int64_t>(c)) == stage) {
      text += chunk.embedding ? "(embedding" : "(";
      for (size_t b = block; b < block + count; ++b) {
        text += " " + std::to_string(costs[b]);
      }
      text += chunk.head ? " head)" : ")";
      const auto local = static_cast<int32_t>(static_cast<int64_t>(c) / step.args.stages);
      text += neighbour(step.args, stage, local, 1) < 0 ? "" : " here"; // sends nothing
    }
    block += count;
  }
  return text;
}

/// The step without its records; `costs` become those of the blocks.
RecordedStep outline(const PlanTarget& target, std::vector<double>& costs) {
  const Recipe& recipe = target.recipe;
  costs = block_costs(recipe, target.host);
  const int64_t samples = recipe.batch.micro * recipe.parallel.data_degree(target.world);
  return planned_step(target, costs, std::max<int64_t>(1, recipe.batch.global / samples));
}

StageRecord record_keeping(
    const PlanTarget& target,
    int64_t stage,
    const std::vector<Keep>& keep,
    RecordedStep& step,
    int64_t microbatches
) {
  return naming_missing_shapes([&] {
    return StageRecorder(target, stage, keep, step).run(microbatches);
  });
}

/// Three microbatches are enough (see the header).
StageRecord record_keeping(
    const PlanTarget& target, int64_t stage, const std::vector<Keep>& keep, RecordedStep& step
) {
  return record_keeping(target, stage, keep, step, std::min<int64_t>(3, step.args.microbatches));
}

using PeakOf = std::function<int64_t(const std::vector<Keep>&)>;

/// The activations that the stage's blocks save by the recipe's policy; `peak` is for policies that
/// measure.
std::vector<Keep>
keep_of(const PlanTarget& target, const RecordedStep& step, int64_t stage, const PeakOf& peak) {
  const auto& recompute = target.recipe.recompute;
  const int64_t layers =
      step.layout.empty() ? step.layers : stage_layers(step.layout, step.args, stage);
  const auto policy =
      target.host.make<RecomputePolicy>(recompute, {.layers = layers, .peak_memory = peak});
  return kept_by(*policy, layers);
}

/// The recipe with as few microbatches as its schedule takes.
Recipe with_few_microbatches(const PlanTarget& target, const PipelineSchedule::Args& args) {
  Recipe recipe = target.recipe;
  const int64_t few = std::min(args.microbatches, args.stages * args.virtual_stages);
  recipe.batch = {};
  recipe.batch.micro = target.recipe.batch.micro;
  recipe.batch.global = few * recipe.batch.micro * recipe.parallel.data_degree(target.world);
  return recipe;
}

/// The records of a step, each made once: stages that hold and keep the same share one, and so do
/// the trials of a policy that measures.
class StepRecords {
public:
  explicit StepRecords(const PlanTarget& target)
      : target_(target)
      , step_(outline(target, costs_))
      , few_(with_few_microbatches(target, step_.args)) {}

  RecordedStep run() && {
    std::vector<size_t> chosen; // by stage
    step_.recomputed = true;
    for (int64_t stage = 0; stage < step_.args.stages; ++stage) {
      const auto peak = [&](const std::vector<Keep>& keep) {
        return compose_memory(step_, stage, all_[number_of(stage, keep)]).working;
      };
      const std::vector<Keep> keep = keep_of(target_, step_, stage, peak);
      for (const Keep& block : keep) {
        step_.recomputed = step_.recomputed && !block.everything;
      }
      chosen.push_back(number_of(stage, keep));
    }
    std::map<size_t, size_t> used;
    for (const size_t number : chosen) {
      const auto [found, fresh] = used.emplace(number, step_.records.size());
      if (fresh) {
        step_.records.push_back(std::move(all_[number]));
      }
      step_.record_of.push_back(found->second);
    }
    step_.recorded = static_cast<int64_t>(all_.size());
    return std::move(step_);
  }

private:
  size_t number_of(int64_t stage, const std::vector<Keep>& keep) {
    const auto [found, fresh] = known_.emplace(signature(step_, costs_, keep, stage), all_.size());
    if (fresh) { // a session proves the lists of all microbatches: the first one does
      const PlanTarget few{few_, target_.host, target_.world, target_.device, target_.imbalance};
      all_.push_back(record_keeping(all_.empty() ? target_ : few, stage, keep, step_));
    }
    return found->second;
  }

  const PlanTarget& target_;
  std::vector<double> costs_;
  RecordedStep step_;
  Recipe few_;
  std::vector<StageRecord> all_;
  std::map<std::string, size_t> known_; // by signature
};

} // namespace

const PassRecord& StageRecord::of(const Instruction& one, int64_t microbatches) const {
  const auto* pass = find_pass(passes, PassKey::of(one, microbatches));
  MH_ASSERT(pass != nullptr, "no pass was recorded of " + to_string(one));
  return *pass;
}

at::DeviceType planned_device(const Recipe& recipe, Host& host) {
  using enum PlannedDevice::Kernels;
  const auto kernels = host.require(Kind::device, recipe.device.use).planned.kernels;
  return kernels == cpu ? at::kCPU : kernels == cuda ? at::kCUDA : at::kPrivateUse1;
}

RecordedStep
planned_step(const PlanTarget& target, const std::vector<double>& costs, int64_t microbatches) {
  const Recipe& recipe = target.recipe;
  RecordedStep step;
  step.device = target.device;
  step.shape = mesh_shape(recipe, target.world);
  check_degrees(step.shape);
  step.layers = static_cast<int64_t>(costs.size()) - 2;
  step.args = {
      .stages = step.shape.pp,
      .virtual_stages = step.shape.pp > 1 ? recipe.parallel.virtual_stages : 1,
      .microbatches = microbatches};
  if (step.shape.pp > 1) {
    step.layout = stage_layout(recipe, costs);
    const auto pipeline = make_pipeline(recipe, target.host, microbatches);
    step.args = pipeline->args();
    step.lists = pipeline->training(microbatches);
  } else {
    step.lists = sequential_lists(step.args, /*splits=*/false);
  }
  return step;
}

std::vector<double> block_costs(const Recipe& recipe, Host& host) {
  const auto tokenizer = host.make<Tokenizer>(recipe.tokenizer);
  const auto architecture = host.make<Architecture>(
      recipe.model, {.vocab = tokenizer->vocab(), .seq_length = recipe.model.seq_length}
  );
  return block_costs(*architecture, recipe.model.seq_length);
}

StageRecord
record_stage(const PlanTarget& target, int64_t stage, RecordedStep& step, int64_t microbatches) {
  return record_keeping(target, stage, keep_of(target, step, stage, {}), step, microbatches);
}

RecordedStep record_step(const PlanTarget& target) {
  return StepRecords(target).run();
}

StepPeak step_peak(const PlanTarget& target) {
  return [target](const StepQuestion& asked) {
    std::vector<double> costs;
    RecordedStep step = outline(target, costs);
    const StageRecord record = record_keeping(target, asked.stage, asked.keep, step);
    return compose_memory(step, asked.stage, record).working;
  };
}

} // namespace mh
