#include "core/train/trainer.hpp"

#include "core/base/number_text.hpp"
#include "core/base/text.hpp"
#include "core/kernels/level.hpp"
#include "core/kernels/processor.hpp"
#include "core/memory/caching_allocator.hpp"
#include "core/mesh/hang_report.hpp"
#include "core/model/plugin_call.hpp"
#include "core/recipe/changes.hpp"
#include "core/session/evaluate.hpp"
#include "core/session/run_tokenizer.hpp"
#include "core/step/deterministic.hpp"
#include "core/step/parameter_groups.hpp"
#include "core/storage/step_folder.hpp"
#include "core/train/automatic_start.hpp"
#include "core/train/closing.hpp"
#include "core/train/resume.hpp"
#include "core/train/start_block.hpp"
#include "megahost/error.hpp"
#include "megahost/random.hpp"

#include <ATen/Parallel.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <sstream>
#include <utility>

namespace mh {

Trainer::Trainer(const Recipe& recipe, Host& host, const TrainOptions& options, Output& output)
    : host_(host)
    , options_(options)
    , output_(output)
    , load_(load_of(recipe, host, options))
    , session_(make_session(
          recipe,
          host,
          {.initialise = load_.from.empty(),
           .partial = !load_.strict || !load_.match.empty(),
           .device = options.device,
           .processes = options.processes,
           .mesh = options.mesh,
           .step_peak = options.step_peak,
           .warn =
               [this, &output](const std::string& text) {
                 output.warning(text);
                 journal_.note({.kind = "warning", .text = text});
               }}
      ))
    , ranks_(ranks_of(session_->mesh.all()))
    , format_(checkpoint_format(recipe, host))
    , guards_(recipe)
    , iterations_(recipe.iterations()) {
  auto& session = *session_;
  require_evaluation(session);
  freeze(session.model->parameters(), recipe.optimizer.groups, ranks_);
  const std::string libtorch = options.gemm ? session.share_gemm(options.gemm) : "";
  auto given = load_.optimizer ? std::nullopt : load_given(nullptr);
  const bool resumes = options.resume != Resume::no;
  folder_ = on_first(ranks_, [&] {
    const bool goes_on = options.resume == Resume::yes;
    const auto folder = run_folder(recipe.run_folder(), resumes, goes_on && options.folder_named);
    const auto saves = checkpoint_folder(recipe, folder);
    if (goes_on && !std::filesystem::exists(folder)) {
      require_checkpoint(*format_, saves); // no folder is made for a name that was mistyped
    }
    require_commits(host.storage(), saves);
    lock_ = take_run_folder(folder);
    const bool local = recipe.checkpoint.local_interval > 0; // which may have the only one
    if (goes_on && !local) { // who writes there at the moment is told first
      require_checkpoint(*format_, saves, [&] {
        return other_checkpoint(recipe, *format_, folder);
      });
    } else if (!resumes) {
      require_no_checkpoint(recipe, *format_, folder);
    }
    return folder.string();
  });
  if (session.watch != nullptr) {
    session.watch->leave_reports(hang_folder(folder_));
  }
  saves_ = checkpoint_folder(recipe, folder_);
  session.allocate_gradients();
  weights_ = std::make_unique<Weights>(
      *session.gradients, *session.optimizer, weight_options(recipe, session.mesh)
  );
  progress_.seed = recipe.train.seed;
  progress_.threads = at::get_num_threads();
  progress_.cpu_level = this_processor().level + ", kernels " + std::string(kernels::level().name);
  if (!libtorch.empty()) {
    progress_.cpu_level += ", fp32 GEMM of LibTorch for " + libtorch;
  }
  progress_.plugins = used_plugins(recipe, host);
  progress_.sections = section_texts(recipe.tree);
  progress_.data = data_fingerprint(session);

  open_local(/*is_new=*/!resumes);
  std::vector<std::string> notes;
  if (!libtorch.empty()) {
    notes.push_back("fp32 GEMM of LibTorch for " + libtorch);
  }
  if (const std::string repeats = repeated_samples(session, Split::valid);
      recipe.train.eval_interval > 0 && !repeats.empty()) {
    notes.push_back("warning: " + repeats);
  }
  const auto more = option_notes(session);
  notes.insert(notes.end(), more.begin(), more.end());
  if (resumes) {
    resume(notes);
  }
  const bool has_own = progress_.step > 0; // what it loads is that
  if (load_.optimizer && !has_own) {
    given = load_given(weights_.get());
    weights_->publish();
    share_weights();
  }
  if (given && !has_own) {
    start_from(*given, notes);
  } else if (!recipe.load.from.empty()) {
    notes.push_back("weights: those of its checkpoint, not of " + recipe.load.from);
  }
  progress_.schedule = session.schedule->text();
  device_step_ = options.device_step ? options.device_step(session, *weights_, host) : nullptr;
  MH_ASSERT(
      device_step_ != nullptr || session.device->as_program_device() == nullptr,
      "a device that runs programs trains by DeviceStep"
  );
  if (device_step_ != nullptr && !device_step_->note().empty()) {
    notes.push_back(device_step_->note());
  }
  open_saves();
  peak_ = device_peak(session, options.measured_peak);
  if (progress_.step == 0 || progress_.step < iterations_) { // else nothing of the run changes
    on_first(ranks_, [&] {                                   // from here on it is this recipe's
      write_run_recipe(folder_, options.recipe_text);
      const auto& tokenizer = recipe.tokenizer;
      if (!tokenizer.use.empty()) {
        const auto& schema = host.require(Kind::tokenizer, tokenizer.use).schema;
        keep_tokenizer(local_storage(), folder_, schema, tokenizer.options.as_table());
      }
      return std::string();
    });
  }
  open_log();
  if (std::filesystem::exists(folder_)) { // by this or another machine that shares the disk
    journal_.open(folder_);
  }
  if (recipe.log.progress && ranks_.rank == 0) {
    progress_log_.emplace(folder_, session.mesh.world(), work());
  }
  if (session.mesh.world() > 1) {
    const bool hosts_compute = session.place.is_cpu() && device_step_ == nullptr;
    comparison_.emplace(ranks_, session.mesh.coordinate(MeshAxis::pp), hosts_compute);
  }
  for (const auto& note :
       folder_notes(recipe.run_folder(), folder_, resumes, options.folder_named)) {
    log_->line(note);
  }
  const SaveBytes saves = save_bytes();
  for (const auto& line :
       start_block(session, host_, *weights_, peak_, progress_.plugins, folder_, saves)) {
    log_->line(line);
  }
  for (const auto& note : notes) {
    log_->line(note);
  }
  if (const auto line = set_deterministic(recipe.train.deterministic, *session.device);
      !line.empty()) {
    log_->line(line);
  }
  if (options.debug) {
    watch_ = std::make_unique<NanWatch>();
    log_->line(
        "--debug: the results of every operation are looked at, steps take several times as long"
    );
  }
  data_ = std::make_unique<Prefetcher>(
      *session.corpus,
      Split::train,
      [&session](int64_t first) { return session.layout(first); },
      recipe.data.prefetch,
      recipe.data.prefetch_threads
  );
}

/// Goes on from the newest checkpoint, if there is one and it is of this recipe.
void Trainer::resume(std::vector<std::string>& notes) {
  const auto& recipe = session_->recipe;
  const ResumedRun run{
      recipe,
      host_,
      saves_.string(),
      progress_.data,
      session_->tokenizer->vocab(),
      options_.allow_change};
  std::vector<std::string> changes; // since the checkpoint that was judged last
  const auto saved = load(notes, [&](const Progress& progress, const TensorFit& fit) {
    changes = judge_checkpoint(run, progress, fit);
  });
  notes.insert(notes.end(), changes.begin(), changes.end());
  if (!saved) {
    on_first(ranks_, [&] {
      if (options_.resume == Resume::yes) { // and no local checkpoint is there in its place
        require_checkpoint(*format_, saves_);
      }
      return std::string();
    });
    const std::string other = other_checkpoint(session_->recipe, *format_, folder_);
    notes.push_back(
        "no checkpoint in " + saves_.string() + " yet: starting at step 0" +
        (other.empty() ? "" : "; " + other)
    );
    return;
  }
  on_first(ranks_, [&] { // also where nothing is left to save, which does it, too
    in_plugin(*format_, "recover", [&] {
      format_->recover(saves_, [&](const std::string& sentence) {
        notes.push_back("warning: " + sentence);
      });
    });
    return std::string();
  });
  for (const auto& difference : differences(*saved, progress_)) {
    notes.push_back("warning: " + difference);
  }
  guards_.restore(saved->guards);
  restore(*saved);
  *session_->schedule = resumed(recipe, saved->schedule, host_, notes);
  notes.push_back(
      "resumed at step " + std::to_string(saved->step) +
      (recipe.checkpoint.automatic
           ? " from the " + format_->about() + " " + saves_.string() + " (checkpoint.auto)"
           : "")
  );
}

/// Drops what an earlier log says of steps after this one.
void Trainer::open_log() {
  const auto& recipe = session_->recipe;
  const Rates rates{
      .iterations = iterations_,
      .global_batch = recipe.batch.global,
      .tokens_per_sample = session_->tokens_per_sample(),
      .flops_per_sample = session_->flops_per_sample(),
      .peak_flops = peak_.flops,
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

std::string Trainer::stop_reason() const {
  const auto& train = session_->recipe.train;
  if (progress_.step >= iterations_) {
    return "finished";
  }
  if (train.exit_iters && progress_.step >= *train.exit_iters) {
    return "train.exit_iters";
  }
  // Some reasons only one rank may have noticed: all stop for the same reason, after the same step.
  static constexpr std::array kReasons{"", "train.exit_minutes", "SIGINT", "SIGTERM", "SIGUSR1"};
  int64_t reason =
      !first_step_ && train.exit_minutes && seconds_since(start_) >= 60 * *train.exit_minutes ? 1
                                                                                              : 0;
  if (const auto signal = signals_.received(); !signal.empty()) {
    reason = std::find(kReasons.begin(), kReasons.end(), signal) - kReasons.begin();
  }
  return kReasons.at(static_cast<size_t>(largest(session_->mesh.all(), reason)));
}

void Trainer::evaluate() {
  fetch_weights();
  const int64_t done = (progress_.step - 1) / session_->recipe.train.eval_interval;
  const bool others = session_->optimizer->keeps_other_weights();
  if (others) {
    show_kept_weights();
  }
  const auto losses = evaluate_split(*session_, Split::valid, done);
  if (others) {
    weights_->publish();
    session_->gradients->share_parameters();
  }
  log_->evaluation({progress_.step, progress_.samples, losses, unix_now()});
  evaluated_step_ = progress_.step;
  if (const auto& curve = log_->curves().validation; !curve.empty()) {
    progress_.validation_loss = curve.back().second;
  }
}

/// The model has the weights that checkpoints have, until `Weights::publish`.
void Trainer::show_kept_weights() {
  if (session_->gradients->zero() < 3) {
    session_->gradients->wait_for_all(); // no gather reads a shard that changes
  }
  weights_->publish_masters();
  session_->gradients->share_parameters();
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
        " is for ui.perfetto.dev or chrome://tracing; tables.txt next to it has every row"
    );
  } catch (const Error& error) {
    log_->line(std::string("warning: the profile was not written: ") + error.what());
  }
  log_->line("");
}

/// The command that trains on from the end of this run, with its comment.
NextCommand Trainer::train_on() const {
  const Recipe& recipe = session_->recipe;
  const bool by_steps = recipe.train.iters.has_value();
  const std::string key = by_steps ? "train.iters" : "train.samples";
  const int64_t longer = 2 * (by_steps ? *recipe.train.iters : recipe.train.samples.value_or(0));
  NextCommand next{
      .anew = {key, "lr_schedule.on_resume"},
      .options = " --resume --set " + key + "=" + std::to_string(longer),
      .comment = "train on"};
  const auto rates =
      rates_of_longer_run(recipe, *session_->schedule, updates_done(), longer, host_);
  const bool over = rates.kept <= 1e-6 * recipe.optimizer.lr; // a schedule that ends at 0
  if (!over && rates.recipe > 1.01 * rates.kept) {
    next.options += " --set lr_schedule.on_resume=checkpoint";
    next.comment += formatted(
        ", at a learning rate of %.2e; the longer schedule would begin at %.2e",
        rates.kept,
        rates.recipe
    );
  } else if (rates.recipe > 1.01 * rates.kept) {
    if (const double last = last_rate_.value_or(rates.kept); rates.recipe > 1.01 * last) {
      next.comment += formatted(
          "; the learning rate goes up from %.2e to %.2e, as the schedule is longer then",
          last,
          rates.recipe
      );
    }
    if (recipe.lr_schedule.on_resume == "checkpoint") { // which would stay there forever
      next.options += " --set lr_schedule.on_resume=recipe";
    }
  }
  return next;
}

void Trainer::say_how_to_resume() {
  log_->line(
      saved_step_ > 0 || local_ != nullptr
          ? "resume with: " + command_line(options_, session_->recipe, folder_, "run") + " --resume"
          : "no checkpoint was written: there is nothing to resume"
  );
}

TrainSummary Trainer::run() {
  TrainSummary summary;
  if (options_.started) {
    options_.started(folder_);
  }
  const LostSteps& lost = log_->lost();
  const double age = seconds_since(start_) + options_.age;
  note(
      {.kind = "start",
       .ranks = session_->mesh.world(),
       .seconds = age,
       .lost_steps = lost.steps,
       .lost_seconds = lost.seconds,
       .alive = lost.alive}
  );
  try {
    without_nondeterminism([&] { steps(summary); });
  } catch (const CollectiveError& error) {
    if (session_->watch != nullptr) {
      session_->watch->failed(error.what());
    }
    note({.kind = "failure", .text = error.what()});
    if (meeting_ != nullptr) {
      meeting_->end(); // a rank is lost: those that save do not wait for it
    }
    if (local_meeting_ != nullptr) {
      local_meeting_->end();
    }
    settle_saves();
    say_how_to_resume();
    throw;
  } catch (const std::exception& error) {
    const std::string rank =
        session_->mesh.world() > 1 ? "rank " + std::to_string(ranks_.rank) + ": " : "";
    journal_.note({.kind = "failure", .step = progress_.step, .text = rank + error.what()});
    settle_saves();
    say_how_to_resume();
    throw;
  }
  note({.kind = "end", .text = summary.reason});
  return summary;
}

void Trainer::steps(TrainSummary& summary) {
  const auto& recipe = session_->recipe;
  if (progress_.step >= iterations_) {
    log_->line("this run is finished: raise train.iters to go on");
  }
  release_unused_memory(); // what starting took is of no use to the steps
  reset_peak_bytes();
  while (summary.reason = stop_reason(), summary.reason.empty() || ahead_) {
    step(); // also one that a device has begun
    if (options_.profile && options_.profile->last == progress_.step) {
      show_profile();
    }
    if (due(recipe.train.eval_interval)) {
      timed("evaluation", [&] { evaluate(); });
    }
    if (background_) {
      tell(background_->finished());
    }
    if (due(recipe.checkpoint.interval)) {
      timed("save", [&] { background_ ? save_in_background() : save_or_warn(retention()); });
    } else if (local_ && due(recipe.checkpoint.local_interval)) {
      timed("save", [&] { save_locally(); });
    }
  }
  if (options_.profile && options_.profile->last > progress_.step) {
    show_profile();
  }
  const bool finished = summary.reason == "finished";
  if (!finished) {
    log_->line("stopping at step " + std::to_string(progress_.step) + ": " + summary.reason);
  }
  if (finished && progress_.step > 0 && updates_done().updates == 0) {
    log_->line("warning: " + guards_.no_update_text(progress_.step));
  }
  if (finished && recipe.train.eval_interval > 0 && evaluated_step_ != progress_.step) {
    timed("evaluation", [&] { evaluate(); });
  }
  timed("save", [&] {
    settle_saves();
    if (recipe.checkpoint.save_at_end || !finished) {
      save(retention());
      require_saved();
    }
  });
  if (local_ && finished && saved_step_ == progress_.step) {
    end_local();
  }
  summary.step = progress_.step;
  summary.folder = folder_;
  if (const auto& train = log_->curves().train; !train.empty()) {
    summary.loss = train.back().second;
  }
  if (const auto& validation = log_->curves().validation; !validation.empty()) {
    summary.validation_loss = validation.back().second;
  }
  fetch_weights();
  if (session_->optimizer->keeps_other_weights()) {
    show_kept_weights(); // for the sample, and for who reads the session after the run
  }
  if (options_.closing && ranks_.rank == 0 && signals_.received().empty()) {
    close_run(
        *session_,
        *log_,
        output_,
        options_,
        folder_,
        finished ? [this] { return train_on(); } : std::function<NextCommand()>()
    );
  }
  if (!finished) {
    say_how_to_resume();
  }
}

TrainSummary train(const Recipe& recipe, Host& host, const TrainOptions& options, Output& output) {
  return Trainer(recipe, host, options, output).run();
}

} // namespace mh
