#include "core/plan/stage_record.hpp"

#include "core/mesh/layout.hpp"
#include "core/plan/sequential.hpp"
#include "core/plan/shapes_missing.hpp"
#include "core/train/batches.hpp"
#include "core/train/session.hpp"
#include "core/train/step.hpp"
#include "megahost/error.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_like.h>
#include <ATen/record_function.h>

#include <algorithm>
#include <set>
#include <utility>

namespace mh {

namespace {

using Op = Instruction::Op;
using Place = StageRecord::Place;

Place place_of(int64_t microbatch, int64_t microbatches) {
  return microbatch == microbatches - 1 ? Place::last
         : microbatch == 0              ? Place::first
                                        : Place::middle;
}

/// Samples of the corpus' sizes with nothing in them; of tokens, labels and a mask where the corpus
/// is not here.
class Shapes : public Corpus {
public:
  Shapes(Host& host, const Recipe& recipe, const Args& args, std::vector<std::string>& notes) {
    try {
      sample_ =
          host.make<Corpus>(recipe.data.use, recipe.data.options, args)->sample(Split::train, 0);
    } catch (const Error& error) {
      const std::string note = "the corpus is not here, its samples are taken to be tokens, labels "
                               "and a loss mask: " +
                               std::string(error.what());
      if (std::find(notes.begin(), notes.end(), note) == notes.end()) {
        notes.push_back(note);
      }
      const auto length = static_cast<size_t>(args.seq_length);
      sample_ = {
          {"tokens", std::vector<int64_t>(length)},
          {"labels", std::vector<int64_t>(length)},
          {"loss_mask", std::vector<float>(length, 1.0F)}};
    }
  }

  [[nodiscard]] int64_t size(Split) const override { return 1; }

  [[nodiscard]] Sample sample(Split, int64_t) const override { return sample_; }

  [[nodiscard]] std::string summary() const override { return "samples of a plan"; }

private:
  Sample sample_;
};

/// The rank of stage `stage` that is first along every other axis.
int64_t rank_of(const MeshShape& shape, const std::string& order, int64_t stage) {
  return mesh_groups(shape, MeshAxis::pp, order).front()[static_cast<size_t>(stage)];
}

class StageRecorder {
public:
  StageRecorder(const PlanTarget& target, int64_t stage, RecordedStep& step)
      : target_(target)
      , step_(step)
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
    options.make_corpus = [&](const Corpus::Args& args) {
      return std::make_unique<Shapes>(target.host, target.recipe, args, step.notes);
    };
    session_ = make_session(target.recipe, target.host, options);
    session_->allocate_gradients(); // which moves the parameters
    record_.gradients = session_->gradients->bytes();
    record_.parameters = recorder_.memory().used() - record_.gradients;
    weights_ = std::make_unique<Weights>(
        session_->model->parameters(),
        session_->gradients->owned(),
        *session_->optimizer,
        weight_options(target.recipe, mesh_)
    );
    record_.state = recorder_.memory().used() - record_.parameters - record_.gradients;
    step.layers = session_->architecture->layers();
    step.model_flops = session_->flops_per_token();
    step.parameters = session_->model->global_elements();
  }

  StageRecord run(int64_t microbatches) && {
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
    record_.workspace = recorder_.workspace();
    return std::move(record_);
  }

private:
  /// Of a CPU they lie in memory from the start, and nothing is copied.
  [[nodiscard]] std::vector<Batch> batches(int64_t microbatches) {
    auto layout = session_->layout();
    layout.microbatches = microbatches;
    auto all = load_batches(*session_->corpus, Split::train, 0, layout);
    record_.batch = 0;
    for (auto& [name, array] : all.front().arrays) {
      record_.batch += static_cast<int64_t>(array.nbytes());
    }
    if (target_.device == at::kCPU) {
      const UncountedMemory uncounted;
      for (auto& batch : all) {
        for (auto& [name, array] : batch.arrays) {
          array = at::empty_like(array, array.options().device(at::kMeta));
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
         .update = {.step = 1, .lr = target_.recipe.optimizer.lr},
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
      const auto& events = recorder_.events();
      record->events.assign(events.begin() + static_cast<std::ptrdiff_t>(event_), events.end());
      for (const auto& event : record->events) {
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
      now_ = &record_.passes[{next->op, next->chunk, place_of(next->microbatch, microbatches)}];
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
  Recorder recorder_;
  Mesh mesh_;
  StageRecord record_;
  std::unique_ptr<Session> session_;
  std::unique_ptr<Weights> weights_;
  PassRecord* now_ = nullptr; // what runs
  int64_t used_ = 0;          // when it began
  size_t event_ = 0, closing_event_ = 0;
};

/// What tells stages apart: their chunks' blocks.
std::string signature(const RecordedStep& step, const std::vector<double>& costs, int64_t stage) {
  if (step.layout.empty()) {
    return "";
  }
  std::string text;
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
      text += beside(step.args, stage, local, 1) < 0 ? "" : " here"; // sends nothing
    }
    block += count;
  }
  return text;
}

} // namespace

const PassRecord& StageRecord::of(const Instruction& one, int64_t microbatches) const {
  for (const Place place : {place_of(one.microbatch, microbatches), Place::middle, Place::last}) {
    const auto found = passes.find({one.op, one.chunk, place});
    if (found != passes.end()) {
      return found->second;
    }
  }
  throw InternalError("no pass was recorded of " + to_string(one));
}

StageRecord
record_stage(const PlanTarget& target, int64_t stage, RecordedStep& step, int64_t microbatches) {
  return naming_missing_shapes([&] { return StageRecorder(target, stage, step).run(microbatches); }
  );
}

RecordedStep record_step(const PlanTarget& target) {
  const Recipe& recipe = target.recipe;
  RecordedStep step;
  step.shape = mesh_shape(recipe, target.world);
  check_degrees(step.shape);
  const int64_t samples = recipe.batch.micro * step.shape.dp;
  step.args = {
      .stages = step.shape.pp,
      .virtual_stages = step.shape.pp > 1 ? recipe.parallel.virtual_stages : 1,
      .microbatches = std::max<int64_t>(1, recipe.batch.global / samples)};
  std::vector<double> costs;
  if (step.shape.pp > 1) {
    const auto tokenizer =
        target.host.make<Tokenizer>(recipe.tokenizer.use, recipe.tokenizer.options);
    const auto architecture = target.host.make<Architecture>(
        recipe.model.use,
        recipe.model.options,
        {.vocab = tokenizer->vocab(), .seq_length = recipe.model.seq_length}
    );
    costs = block_costs(*architecture, recipe.model.seq_length);
    step.layout = stage_layout(recipe, costs);
    const auto pipeline = make_pipeline(recipe, target.host, step.args.microbatches);
    step.args = pipeline->args();
    step.lists = pipeline->training(step.args.microbatches);
  } else {
    step.lists = sequential_lists(step.args, /*splits=*/false);
  }
  std::map<std::string, size_t> known;
  for (int64_t stage = 0; stage < step.args.stages; ++stage) {
    const auto [found, fresh] = known.emplace(signature(step, costs, stage), step.records.size());
    if (fresh) {
      step.records.push_back(
          record_stage(target, stage, step, std::min<int64_t>(3, step.args.microbatches))
      );
    }
    step.record_of.push_back(found->second);
  }
  return step;
}

} // namespace mh
