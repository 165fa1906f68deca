// One step of a run, and what becomes of the run when the step's numbers are no good.

#include "core/base/number_text.hpp"
#include "core/base/text.hpp"
#include "core/memory/caching_allocator.hpp"
#include "core/step/repeated_step.hpp"
#include "core/train/start_block.hpp"
#include "core/train/trainer.hpp"
#include "megahost/error.hpp"
#include "megahost/random.hpp"

#include <cmath>
#include <utility>

namespace mh {

namespace {

/// Bytes that this rank's tensors have taken at most since the steps began.
int64_t tensor_peak(const Session& session) {
  return session.place.is_cpu() ? allocator_counts().peak_bytes : session.device->peak_memory();
}

} // namespace

/// `steps_before`, `samples_before`: of steps that are not counted yet, and update.
Trainer::Prepared Trainer::prepare(int64_t steps_before, int64_t samples_before) {
  auto& session = *session_;
  const auto begin = Clock::now();
  Prepared made{.number = progress_.step + steps_before + 1};
  const int64_t first = next_sample() + samples_before;
  made.batch = session.layout(first).global();
  made.batches = data_->get(first, iterations_ - made.number);
  made.data_seconds = seconds_since(begin);
  Completed completed = updates_done();
  completed.updates += steps_before;
  completed.samples += samples_before;
  made.weight_decay = session.schedule->weight_decay(completed);
  made.options = {
      .seed =
          random_key(seed(), "step " + std::to_string(made.number + progress_.beginnings.random)),
      .clip = session.recipe.optimizer.clip_grad,
      .update =
          {.step = completed.updates + progress_.beginnings.updates + 1,
           .lr = session.schedule->lr(completed),
           .seed = seed()},
      .loss_scale = guards_.loss_scale(),
      .count_zeros = session.recipe.log.num_zeros};
  return made;
}

/// Whether the step after this one follows at once: nothing asks for weights between them, and the
/// run does not end.
bool Trainer::goes_on_after(int64_t number) const {
  const auto& recipe = session_->recipe;
  const auto due = [number](int64_t interval) { return interval > 0 && number % interval == 0; };
  const bool asked = due(recipe.train.eval_interval) || due(recipe.checkpoint.interval) ||
                     (local_ && due(recipe.checkpoint.local_interval)) || recipe.log.params_norm;
  const bool last =
      number >= iterations_ || (recipe.train.exit_iters && number >= *recipe.train.exit_iters);
  return !asked && !last && !guards_.scales() && !options_.profile && stop_reason().empty();
}

StepResult Trainer::run_on_device(const Prepared& now, const StepOptions& options) {
  const auto request = [](const Prepared& step, const StepOptions& of_step) {
    return DeviceStep::Request{step.number, step.batches, of_step, step.weight_decay};
  };
  std::optional<DeviceStep::Request> next;
  ahead_.reset();
  StepResult result = device_step_->run(request(now, options), [&]() -> const DeviceStep::Request* {
    if (!goes_on_after(now.number)) {
      return nullptr;
    }
    try {
      ahead_ = prepare(1, now.batch);
    } catch (const std::exception&) { // told when that step's turn has come
      return nullptr;
    }
    next = request(*ahead_, ahead_->options);
    return &*next;
  });
  if (!result.updated) {
    ahead_.reset();
  }
  return result;
}

void Trainer::step() {
  auto& session = *session_;
  const auto begin = Clock::now();
  const int64_t number = progress_.step + 1;
  session.mesh.log()->begin_step(number);
  PartClock parts(*session.mesh.log());
  const bool profiled = options_.profile && options_.profile->has(number);
  if (profiled) {
    profile_.begin_step(number);
  }
  const Prepared now = ahead_ ? std::move(*ahead_) : prepare();
  parts.begin(StepPart::update);
  const auto& batches = now.batches;
  last_rate_ = now.options.update.lr.read();
  weights_->set_weight_decay(now.weight_decay);
  Judgement judgement;
  auto passes = session.passes();
  passes.checking = options_.checking;
  passes.watch = watch_.get();
  passes.before = [&parts](const Instruction* instruction) { parts.begin(instruction); };
  std::optional<StepResult> suspect; // numbers that are not believed until they come again
  std::string doubt;
  StepOptions options = now.options;
  options.accept = [&](const StepResult& made) {
    if (!suspect && device_step_ == nullptr && !(doubt = guards_.doubt(made)).empty()) {
      suspect = made;
      return false;
    }
    judgement = guards_.judge(made);
    if (watch_ != nullptr && judgement.verdict == Verdict::update) {
      watch_->clear(); // what the update makes shows in the next step
    }
    return judgement.verdict == Verdict::update;
  };
  const auto run = [&] {
    return device_step_ != nullptr
               ? run_on_device(now, options)
               : train_step(passes, *weights_, *session.optimizer, batches, options);
  };
  StepResult result = run();
  if (suspect) {
    result = run();
    examine(doubt, *suspect, result, batches, options);
  }
  const std::string cause = judgement.why.empty()
                                ? ""
                                : "step " + std::to_string(number) + ": " + judgement.why +
                                      (result.finite() ? "" : origin());
  if (judgement.verdict == Verdict::stop) {
    stop_at(cause);
  }
  if (judgement.verdict == Verdict::rewind) {
    rewind(cause);
    return;
  }
  if (judgement.verdict == Verdict::skip && (!judgement.overflow || watch_ != nullptr)) {
    log_->line("skipped " + cause + "; samples " + samples_text());
    note({.kind = "skip", .text = cause});
  }
  if (profiled) { // else the host goes on: the next step's numbers wait for what the device does now
    session.device->synchronize();
    profile_.end_step();
  }
  const PartTimes times = parts.end();
  if (std::exchange(first_step_, false)) {
    show_peak();
  }
  progress_.step = number;
  progress_.validation_loss.reset();
  progress_.samples += now.batch;
  progress_.tokens += now.batch * session.tokens_per_sample();
  log_->step(
      {.step = number,
       .samples = progress_.samples,
       .tokens = progress_.tokens,
       .batch = now.batch,
       .losses = result.updated ? result.losses : std::vector<LossValue>(),
       .metrics = result.metrics,
       .lr = *last_rate_,
       .next_lr = session.schedule->lr(updates_done()),
       .gradient_norm = result.gradient_norm,
       .seconds = seconds_since(begin),
       .data_seconds = now.data_seconds,
       .memory = session.device->peak_memory(),
       .tensors = tensor_peak(session),
       .ranks = session.mesh.world(),
       .skipped = !result.updated,
       .nan = !result.finite(),
       .time = unix_now(),
       .loss_scale = guards_.scales() ? std::optional(now.options.loss_scale) : std::nullopt,
       .num_zeros = result.num_zeros,
       .params_norm = weights_norm()}
  );
  compare_ranks(times);
  const bool copied = session.mesh.world() > 1 && session.gradients->zero() < 3;
  if (copied && due(session.recipe.guards.compare_copies)) {
    compare_copies(batches, options);
  }
}

/// Says what it is that a step's numbers were doubted for, now that it was done again; a rank that
/// computes wrongly each time ends the run.
void Trainer::examine(
    const std::string& why,
    const StepResult& first,
    const StepResult& again,
    std::span<const Batch> batches,
    const StepOptions& options
) {
  Repetition found = compare_again(ranks_, first, again);
  if (found.verdict == Repetition::Verdict::same) {
    BatchLayout layout = session_->layout(next_sample());
    layout.data_rank = (layout.data_rank + 1) % layout.data_ranks;
    const auto next = load_batches(*session_->corpus, Split::train, next_sample(), layout);
    found = exchange_microbatches(session_->passes(), ranks_, batches, next, options);
  }
  const std::string text =
      "step " + std::to_string(progress_.step + 1) + ": " + why + "; done again: " + found.text;
  log_->line(text);
  note({.kind = "repeat", .text = text});
  if (found.verdict == Repetition::Verdict::persistent) {
    stop_at(text, "resume without that machine: its processor or its memory is at fault");
  }
}

/// Ends a run of which a rank holds other weights than those that should hold the same.
/// Checkpoints since the last comparison may be wrong, and nothing more is saved.
void Trainer::compare_copies(std::span<const Batch> batches, const StepOptions& options) {
  session_->gradients->wait_for_all();
  fetch_weights();
  const auto found = copies_that_differ();
  if (!found) {
    same_step_ = progress_.step;
    return;
  }
  const std::string cause = "after step " + std::to_string(progress_.step) + " " + found->text() +
                            copies_again(batches, options);
  log_->line("stopped: " + cause);
  throw Error(
      cause,
      (same_step_ < 0 ? std::string("they have not been the same since this start")
                      : "they were the same after step " + std::to_string(same_step_)) +
          ": go on from a checkpoint that is no newer, on other machines than " +
          join(found->machines()),
      exit_code::numbers
  );
}

/// Whether copies of weights differ again after the last step is done once more from weights that are
/// the same: the end of a sentence. The run's weights are no good any more, and are not kept.
std::string Trainer::copies_again(std::span<const Batch> batches, StepOptions options) {
  if (device_step_ != nullptr || session_->mesh.size(MeshAxis::dp) == 1) {
    return "";
  }
  share_state(*weights_, *session_->gradients);
  options.accept = [](const StepResult&) { return true; };
  (void)train_step(session_->passes(), *weights_, *session_->optimizer, batches, options);
  session_->gradients->wait_for_all();
  const auto again = copies_that_differ();
  return again ? "; when the step was done again from the same weights, once more (persistent): " +
                     again->text()
               : "; when the step was done again from the same weights, all ranks came to the same "
                 "bits: a fault of a moment (transient)";
}

std::optional<DifferentCopies> Trainer::copies_that_differ() {
  return different_copies(together(ranks_, [&] { return copy_sums(session_->model->parameters()); })
  );
}

/// Says which rank all others wait for, once for each that becomes it.
void Trainer::compare_ranks(const PartTimes& times) {
  const auto table = comparison_ ? comparison_->add(progress_.step, times) : std::nullopt;
  if (!table || ranks_.rank != 0) {
    return;
  }
  if (const std::string sentence = comparison_->sentence(*table); !sentence.empty()) {
    log_->line("warning: " + sentence);
    note({.kind = "straggler", .text = sentence});
  }
  try {
    write_rank_table(folder_, *table);
  } catch (const Error&) { // a full disk is no reason to end a run
  }
}

void Trainer::fetch_weights() const {
  if (device_step_ != nullptr) {
    device_step_->fetch();
  }
}

/// Bytes that a step's tensors should take; 0: not known.
int64_t Trainer::planned_peak() {
  if (!session_->peak_memory) {
    return 0;
  }
  try {
    return session_->peak_memory(kept_by(*session_->recompute, session_->layers()));
  } catch (const std::exception& error) { // the run does not need it
    log_->line(std::string("the memory of a step is not planned: ") + error.what());
    return 0;
  }
}

/// Shows, for each stage, the rank whose tensors took most in the first step; it does not wait for
/// a plan.
void Trainer::show_peak() {
  if (device_step_ != nullptr) {
    if (const int64_t bytes = device_step_->memory(); bytes > 0) {
      log_->line("  memory     " + bytes_text(bytes) + " of the device for a step");
    }
    return;
  }
  const Mesh& mesh = session_->mesh;
  const int64_t taken = tensor_peak(*session_);
  const int64_t own_plan = planned_peak();
  for (int64_t stage = 0; stage < mesh.size(MeshAxis::pp); ++stage) {
    const bool here = mesh.coordinate(MeshAxis::pp) == stage;
    const int64_t most = largest(mesh.all(), here ? taken : 0);
    const int64_t planned = largest(mesh.all(), here ? own_plan : 0);
    if (most > 0) {
      log_->line(
          peak_text(session_->stages.empty() ? std::nullopt : std::optional(stage), most, planned)
      );
    }
  }
}

std::optional<double> Trainer::weights_norm() const {
  if (!session_->recipe.log.params_norm) {
    return std::nullopt;
  }
  fetch_weights();
  return std::sqrt(session_->gradients->squared_weight_norm().item<double>());
}

/// The operation in which the numbers of a step became NaN or Inf, if --debug is on: "; first in
/// aten::log ...".
std::string Trainer::origin() {
  if (watch_ == nullptr) {
    return "";
  }
  const auto findings = together(ranks_, [&] { return watch_->finding(); });
  watch_->clear();
  for (size_t rank = 0; rank < findings.size(); ++rank) {
    if (!findings[rank].empty()) {
      return "; the first NaN or Inf came from " + findings[rank] +
             (findings.size() > 1 ? " of rank " + std::to_string(rank) : "");
    }
  }
  return "; no operation made a NaN or Inf from finite numbers: weights or data held it";
}

/// The samples of the step at hand: "16 to 19".
std::string Trainer::samples_text() const {
  const int64_t first = next_sample();
  return std::to_string(first) + " to " +
         std::to_string(first + session_->layout(first).global() - 1);
}

/// Weights, optimizer and schedules of the newest checkpoint; data go on behind the bad batch.
void Trainer::rewind(const std::string& why) {
  const auto& recipe = session_->recipe;
  const int64_t next = next_sample() + session_->layout(next_sample()).global() +
                       recipe.batch.global * recipe.guards.skip_batches;
  settle_saves();
  std::vector<std::string> notes;
  const auto saved = load(notes, [](const auto&, const auto&) {}); // a checkpoint of this very run
  if (!saved) {
    stop_at(why + ", and there is no checkpoint to rewind to");
  }
  restore(*saved);
  guards_.rewound(saved->guards, next - saved->samples);
  open_log();
  const LostSteps& lost = log_->lost();
  note({.kind = "rewind", .lost_steps = lost.steps, .lost_seconds = lost.seconds, .text = why});
  for (const auto& note : notes) {
    log_->line(note);
  }
  log_->line(formatted(
      "%s; rewound to the checkpoint of step %lld, data go on at sample %lld",
      why.c_str(),
      static_cast<long long>(saved->step),
      static_cast<long long>(next)
  ));
}

// Nothing has been updated yet: the state is that before the step, and is kept if it is sound.
void Trainer::stop_at(const std::string& cause, const std::string& hint) {
  settle_saves();
  std::string kept = saved_step_ > 0
                         ? "the checkpoint of step " + std::to_string(saved_step_) + " is whole"
                         : "no checkpoint was written";
  fetch_weights();
  if (progress_.step > saved_step_ && progress_.step > 0 &&
      largest(session_->mesh.all(), weights_->finite() ? 0 : 1) == 0) {
    save_or_warn(/*retention=*/{}); // earlier ones may be sounder: none is removed
  }
  if (saved_step_ == progress_.step && progress_.step > 0) {
    kept = "the state before it is saved in " + format_->place(saves_).string();
  }
  log_->line("stopped at " + cause);
  throw Error(
      cause + "; " + kept,
      !hint.empty() ? hint
                    : "lower optimizer.lr, lengthen the warm-up or look at the data of samples " +
                          samples_text() +
                          ", then resume; `guards` says what else may happen, --debug names the "
                          "operation",
      exit_code::numbers
  );
}

} // namespace mh
