#include "core/train/trainer.hpp"

#include "core/kernels/caching_allocator.hpp"
#include "core/kernels/level.hpp"
#include "core/mesh/agree.hpp"
#include "core/recipe/text.hpp"
#include "core/train/checkpointing.hpp"
#include "core/train/closing.hpp"
#include "core/train/evaluate.hpp"
#include "core/train/guards.hpp"
#include "core/train/parameter_groups.hpp"
#include "core/train/processor.hpp"
#include "core/train/profile.hpp"
#include "core/train/run_folder.hpp"
#include "core/train/run_log.hpp"
#include "core/train/session.hpp"
#include "core/train/signals.hpp"
#include "core/train/start_block.hpp"
#include "core/train/words.hpp"
#include "megahost/error.hpp"
#include "megahost/random.hpp"

#include <ATen/Parallel.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <sstream>
#include <utility>

namespace mh {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

/// Of the ranks that do not speak.
class Silence : public Output {
public:
  void line(const std::string&) override {}
};

class Trainer {
public:
  Trainer(const Recipe& recipe, Host& host, const TrainOptions& options, Output& output);
  TrainSummary run();

private:
  [[nodiscard]] std::string stop_reason() const;
  void steps(TrainSummary& summary);
  void say_how_to_resume();
  void show_profile();
  void step();
  [[noreturn]] void stop_at(const std::string& why);
  void rewind(const std::string& why);
  void open_log();
  [[nodiscard]] std::string samples_text() const;
  [[nodiscard]] std::optional<double> weights_norm() const;
  std::optional<Progress> load(std::vector<std::string>& notes);
  void restore(const Progress& saved);

  [[nodiscard]] int64_t next_sample() const {
    return progress_.samples + guards_.skipped_samples();
  }

  /// Steps without an update move no schedule.
  [[nodiscard]] Completed updates_done() const {
    const int64_t skipped = guards_.skipped();
    const int64_t samples = progress_.samples - skipped * session_->recipe.batch.global;
    return {progress_.step - skipped, std::max<int64_t>(0, samples)};
  }

  void evaluate();
  void save(int64_t keep);
  void save_or_warn(int64_t keep);

  [[nodiscard]] bool due(int64_t interval) const {
    return interval > 0 && progress_.step % interval == 0;
  }

  const TrainOptions& options_;
  Output& output_;
  Silence silence_;
  StopSignals signals_;
  Clock::time_point start_ = Clock::now();
  std::unique_ptr<Session> session_;
  Ranks ranks_;                  // of the whole run
  std::filesystem::path folder_; // of the run, the same on every rank
  std::unique_ptr<FileLock> lock_;
  std::unique_ptr<Weights> weights_;
  std::unique_ptr<Prefetcher> data_;
  Guards guards_;
  std::unique_ptr<RunLog> log_;
  Progress progress_;
  int64_t iterations_;
  Profile profile_;
  bool first_step_ = true; // of this start
  int64_t saved_step_ = -1;
  int64_t evaluated_step_ = -1;
};

Trainer::Trainer(const Recipe& recipe, Host& host, const TrainOptions& options, Output& output)
    : options_(options)
    , output_(output)
    , session_(make_session(
          recipe, host, {.initialise = !options.weights, .processes = options.processes}
      ))
    , ranks_(ranks_of(session_->mesh.all()))
    , guards_(recipe)
    , iterations_(recipe.iterations()) {
  auto& session = *session_;
  require_evaluation(session);
  freeze(session.model->parameters(), recipe.optimizer.groups, ranks_);
  const std::string given = together(ranks_, [&] {
                              return options.weights ? options.weights(session) : std::string();
                            }).front();
  folder_ = on_first(ranks_, [&] {
    const auto folder = run_folder(recipe.checkpoint.dir, options.resume);
    lock_ = make_run_folder(folder, options.recipe_text);
    return folder.string();
  });
  session.allocate_gradients();
  weights_ = std::make_unique<Weights>(
      session.model->parameters(),
      session.gradients->owned(),
      *session.optimizer,
      weight_options(recipe, session.mesh)
  );
  progress_.seed = recipe.train.seed;
  progress_.threads = at::get_num_threads();
  progress_.cpu_level = this_processor().level + ", kernels " + std::string(kernels::level().name);
  progress_.plugins = used_plugins(recipe, host);
  progress_.sections = deciding_sections(recipe);

  std::vector<std::string> notes = folder_notes(recipe.checkpoint.dir, folder_, options.resume);
  if (!given.empty()) {
    notes.push_back("weights: " + given);
  }
  const auto more = optimizer_notes(session);
  notes.insert(notes.end(), more.begin(), more.end());
  if (options.resume) {
    if (const auto saved = load(notes)) {
      for (const auto& difference : differences(*saved, progress_)) {
        notes.push_back("warning: " + difference);
      }
      guards_.restore(saved->guards);
      restore(*saved);
      *session.schedule = resumed(recipe, saved->schedule, host, notes);
      notes.push_back("resumed at step " + std::to_string(saved->step));
    } else {
      notes.push_back("no checkpoint in " + folder_.string() + " yet: starting at step 0");
    }
  }
  progress_.schedule = session.schedule->text();
  open_log();
  for (const auto& line : start_block(session, *weights_, progress_.plugins, folder_)) {
    log_->line(line);
  }
  for (const auto& note : notes) {
    log_->line(note);
  }
  data_ = std::make_unique<Prefetcher>(*session.corpus, Split::train, [&session](int64_t first) {
    return session.layout(first);
  });
}

/// Drops what an earlier log says of steps after this one.
void Trainer::open_log() {
  const auto& recipe = session_->recipe;
  const Rates rates{
      .iterations = iterations_,
      .global_batch = recipe.batch.global,
      .seq = recipe.model.seq_length,
      .flops_per_token = session_->flops_per_token(),
      .peak_flops = session_->device->peak_flops(session_->dtype),
      .ranks = session_->mesh.world()};
  const bool speaks = ranks_.rank == 0;
  log_.reset(); // the files are its
  log_ = std::make_unique<RunLog>(
      speaks ? output_ : silence_,
      speaks ? folder_ : std::filesystem::path(),
      recipe.log,
      rates,
      progress_.step,
      options_.recipe_text
  );
}

/// Weights and state of the newest checkpoint, on all ranks.
std::optional<Progress> Trainer::load(std::vector<std::string>& notes) {
  auto saved = load_checkpoint(folder_, *weights_, notes, ranks_);
  if (saved) {
    session_->gradients->share_parameters();
    session_->gradients->wait_for_all();
  }
  return saved;
}

void Trainer::restore(const Progress& saved) {
  progress_.step = saved_step_ = evaluated_step_ = saved.step;
  progress_.samples = saved.samples;
  progress_.tokens = saved.tokens;
}

std::string Trainer::stop_reason() const {
  const auto& train = session_->recipe.train;
  if (progress_.step >= iterations_) {
    return "finished";
  }
  if (train.exit_iters && progress_.step >= *train.exit_iters) {
    return "train.exit_iters";
  }
  // What only one rank may have noticed: all stop for the same reason, after the same step.
  static constexpr std::array kReasons{"", "train.exit_minutes", "SIGINT", "SIGTERM"};
  int64_t reason =
      !first_step_ && train.exit_minutes && seconds_since(start_) >= 60 * *train.exit_minutes ? 1
                                                                                              : 0;
  if (const auto signal = signals_.received(); !signal.empty()) {
    reason = std::find(kReasons.begin(), kReasons.end(), signal) - kReasons.begin();
  }
  return kReasons.at(static_cast<size_t>(largest(session_->mesh.all(), reason)));
}

void Trainer::step() {
  auto& session = *session_;
  const auto begin = Clock::now();
  const int64_t number = progress_.step + 1;
  const bool profiled = options_.profile && options_.profile->has(number);
  if (profiled) {
    profile_.begin_step(number);
  }
  const int64_t batch = session.layout(next_sample()).global();
  const auto batches = data_->get(next_sample(), progress_.step + 1 < iterations_);
  const uint64_t seed =
      random_key(static_cast<uint64_t>(progress_.seed), "step " + std::to_string(number));
  const Completed completed = updates_done();
  const double lr = session.schedule->lr(completed);
  weights_->set_weight_decay(session.schedule->weight_decay(completed));
  const double loss_scale = guards_.loss_scale();
  Judgement judgement;
  Passes passes = session.passes();
  passes.checking = options_.checking;
  const auto result = train_step(
      passes,
      session.model->parameters(),
      *weights_,
      *session.optimizer,
      batches,
      {.seed = seed,
       .clip = session.recipe.optimizer.clip_grad,
       .update =
           {.step = completed.updates + 1, .lr = lr, .seed = static_cast<uint64_t>(progress_.seed)},
       .loss_scale = loss_scale,
       .count_zeros = session.recipe.log.num_zeros,
       .accept =
           [&](const StepResult& made) {
             judgement = guards_.judge(made);
             return judgement.verdict == Verdict::update;
           }}
  );
  const std::string cause = "step " + std::to_string(number) + ": " + judgement.why;
  if (judgement.verdict == Verdict::stop) {
    stop_at(cause);
  }
  if (judgement.verdict == Verdict::rewind) {
    rewind(cause);
    return;
  }
  if (judgement.verdict == Verdict::skip && !judgement.overflow) {
    log_->line("skipped " + cause + "; samples " + samples_text());
  }
  session.device->synchronize();
  if (profiled) {
    profile_.end_step();
  }
  const int64_t memory = session.device->peak_memory();
  if (std::exchange(first_step_, false) && memory > 0) {
    log_->line(peak_text(session, *weights_, memory));
  }
  progress_.step = number;
  progress_.samples += batch;
  progress_.tokens += batch * session.recipe.model.seq_length;
  log_->step(
      {.step = number,
       .samples = progress_.samples,
       .tokens = progress_.tokens,
       .batch = batch,
       .losses = result.updated ? result.losses : std::vector<LossValue>(),
       .lr = lr,
       .next_lr = session.schedule->lr(updates_done()),
       .gradient_norm = result.gradient_norm,
       .seconds = seconds_since(begin),
       .memory = memory,
       .skipped = !result.updated,
       .nan = !result.finite(),
       .loss_scale = guards_.scales() ? std::optional(loss_scale) : std::nullopt,
       .num_zeros = result.num_zeros,
       .params_norm = weights_norm()}
  );
}

std::optional<double> Trainer::weights_norm() const {
  if (!session_->recipe.log.params_norm) {
    return std::nullopt;
  }
  const auto& parameters = session_->model->parameters();
  return std::sqrt(parameters.squared_weight_norm(session_->mesh).item<double>());
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
  const int64_t next = next_sample() + recipe.batch.global * (1 + recipe.guards.skip_batches);
  std::vector<std::string> notes;
  const auto saved = load(notes);
  if (!saved) {
    stop_at(why + ", and there is no checkpoint to rewind to");
  }
  restore(*saved);
  guards_.rewound(saved->guards, next - saved->samples);
  open_log();
  for (const auto& note : notes) {
    log_->line(note);
  }
  log_->line(words(
      "%s; rewound to the checkpoint of step %lld, data go on at sample %lld",
      why.c_str(),
      static_cast<long long>(saved->step),
      static_cast<long long>(next)
  ));
}

// Nothing has been updated yet: the state is that before the step, and is kept if it is sound.
void Trainer::stop_at(const std::string& cause) {
  std::string kept = saved_step_ > 0
                         ? "the checkpoint of step " + std::to_string(saved_step_) + " is whole"
                         : "no checkpoint was written";
  if (progress_.step > saved_step_ && progress_.step > 0 &&
      largest(session_->mesh.all(), weights_->finite() ? 0 : 1) == 0) {
    save_or_warn(/*keep=*/0); // earlier ones may be sounder: none is removed
  }
  if (saved_step_ == progress_.step && progress_.step > 0) {
    kept = "the state before it is saved in " + checkpoint_folder(folder_).string();
  }
  log_->line("stopped at " + cause);
  throw Error(
      cause + "; " + kept,
      "lower optimizer.lr, lengthen the warm-up or look at the data of samples " + samples_text() +
          ", then resume; `guards` says what else may happen, --debug names the operation",
      exit_code::numbers
  );
}

void Trainer::evaluate() {
  log_->evaluation({progress_.step, progress_.samples, evaluate_split(*session_, Split::valid)});
  evaluated_step_ = progress_.step;
}

void Trainer::save(int64_t keep) {
  if (saved_step_ == progress_.step || progress_.step == 0) {
    return;
  }
  const auto begin = Clock::now();
  std::vector<std::string> notes;
  progress_.guards = guards_.state();
  save_checkpoint(folder_, progress_, *weights_, keep, notes, ranks_);
  saved_step_ = progress_.step;
  log_->line(words(
      "step %6lld/%lld | saved in %s | %.0f ms",
      static_cast<long long>(progress_.step),
      static_cast<long long>(iterations_),
      checkpoint_folder(folder_).c_str(),
      1e3 * seconds_since(begin)
  ));
  for (const auto& note : notes) {
    log_->line(note);
  }
}

void Trainer::save_or_warn(int64_t keep) {
  try {
    save(keep);
  } catch (const Error& error) {
    log_->line(
        "warning: the checkpoint of step " + std::to_string(progress_.step) +
        " was not written, earlier ones are untouched: " + error.what()
    );
  }
}

void Trainer::show_profile() {
  if (ranks_.rank != 0) {
    return;
  }
  const std::string tables = profile_.tables(/*rows=*/12);
  if (tables.empty()) {
    log_->line("warning: none of the steps to profile was run");
    return;
  }
  const auto folder = folder_ / "profile";
  log_->line("");
  std::istringstream lines(tables);
  for (std::string line; std::getline(lines, line);) {
    log_->line(line);
  }
  try {
    write_profile(profile_, folder);
    log_->line(
        "profile: " + (folder / "trace.json").string() +
        " is for ui.perfetto.dev or chrome://tracing; tables.txt beside it has every row"
    );
  } catch (const Error& error) {
    log_->line(std::string("warning: the profile was not written: ") + error.what());
  }
  log_->line("");
}

void Trainer::say_how_to_resume() {
  log_->line(
      saved_step_ > 0
          ? "resume with: " + command_line(options_, session_->recipe, folder_, "run") + " --resume"
          : "no checkpoint was written: there is nothing to resume"
  );
}

TrainSummary Trainer::run() {
  TrainSummary summary;
  try {
    steps(summary);
  } catch (...) {
    say_how_to_resume();
    throw;
  }
  return summary;
}

void Trainer::steps(TrainSummary& summary) {
  const auto& recipe = session_->recipe;
  if (progress_.step >= iterations_) {
    log_->line("this run is finished: raise train.iters to go on");
  }
  release_unused_memory(); // what starting took is of no use to the steps
  while (summary.reason = stop_reason(), summary.reason.empty()) {
    step();
    if (options_.profile && options_.profile->last == progress_.step) {
      show_profile();
    }
    if (due(recipe.train.eval_interval)) {
      evaluate();
    }
    if (due(recipe.checkpoint.interval)) {
      save_or_warn(recipe.checkpoint.keep);
    }
  }
  if (options_.profile && options_.profile->last > progress_.step) {
    show_profile();
  }
  const bool finished = summary.reason == "finished";
  if (!finished) {
    log_->line("stopping at step " + std::to_string(progress_.step) + ": " + summary.reason);
  }
  if (finished && recipe.train.eval_interval > 0 && evaluated_step_ != progress_.step) {
    evaluate();
  }
  if (recipe.checkpoint.save_at_end || !finished) {
    save(recipe.checkpoint.keep);
  }
  summary.step = progress_.step;
  summary.folder = folder_;
  if (const auto& train = log_->curves().train; !train.empty()) {
    summary.loss = train.back().second;
  }
  if (const auto& validation = log_->curves().validation; !validation.empty()) {
    summary.validation_loss = validation.back().second;
  }
  if (options_.closing && ranks_.rank == 0 && signals_.received().empty()) {
    close_run(*session_, *log_, output_, options_, folder_, finished);
  }
  if (!finished) {
    say_how_to_resume();
  }
}

} // namespace

TrainSummary train(const Recipe& recipe, Host& host, const TrainOptions& options, Output& output) {
  return Trainer(recipe, host, options, output).run();
}

} // namespace mh
