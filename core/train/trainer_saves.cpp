// The checkpoints of a run: what it starts from, what it saves, and where.

#include "core/base/number_text.hpp"
#include "core/checkpoint/detect_format.hpp"
#include "core/checkpoint/local_saving.hpp"
#include "core/checkpoint/shared_read.hpp"
#include "core/model/plugin_call.hpp"
#include "core/train/foreign_state.hpp"
#include "core/train/trainer.hpp"
#include "megahost/error.hpp"

#include <optional>
#include <utility>

namespace mh {

/// The checkpoint that a new run starts from: its weights, or with `weights` all state of the
/// optimizer; nothing if the recipe names none.
std::optional<GivenWeights> Trainer::load_given(Weights* weights) {
  if (load_.from.empty()) {
    return std::nullopt;
  }
  WeightsWanted wanted = weights_wanted(load_, options_.allow_change);
  wanted.weights = weights;
  return load_weights(load_.from, *session_, host_, wanted);
}

/// Takes the part of the state of what was loaded that `load` names.
void Trainer::start_from(const GivenWeights& given, std::vector<std::string>& notes) {
  notes.push_back(
      (load_.optimizer ? "weights and optimizer: " : "weights: ") + given.description +
      (load_.from == session_->recipe.load.from ? ""
                                                : " (checkpoint.auto, format " + load_.format + ")")
  );
  notes.insert(notes.end(), given.notes.begin(), given.notes.end());
  if (!load_.optimizer && !load_.progress && !load_.rng && !load_.data) {
    return;
  }
  const bool is_foreign = given.state.empty() && !given.arguments.empty();
  if (is_foreign && load_.rng) {
    throw Error(
        "load.rng: the random numbers of " + given.description + " are another program's",
        "leave it out",
        exit_code::data
    );
  }
  if (given.state.empty() && !is_foreign) {
    throw Error(
        "load.optimizer, progress, rng and data go on from a run's state, and " +
            given.description + " holds weights only",
        "leave them out, or make a run of it by megahost checkpoint import",
        exit_code::data
    );
  }
  const Progress saved = is_foreign ? foreign_progress(*session_, given, host_)
                                    : read_state(given.state, given.description);
  if (load_.progress) {
    guards_.restore(saved.guards);
    count_on(saved);
    *session_->schedule = resumed(session_->recipe, saved.schedule, host_, notes);
    notes.push_back("steps are counted on from " + std::to_string(saved.step));
  }
  // Each goes on from the checkpoint's, or begins anew, whatever the counts of steps and samples are.
  const int64_t random = load_.rng ? saved.step + saved.beginnings.random : 0;
  const int64_t samples =
      load_.data ? saved.samples + saved.guards.skipped_samples + saved.beginnings.samples : 0;
  const int64_t updates =
      load_.optimizer ? saved.step - saved.guards.skipped + saved.beginnings.updates : 0;
  Beginnings& own = progress_.beginnings;
  own.seed = load_.rng ? saved.beginnings.seed.value_or(saved.seed) : own.seed;
  own.random = random - progress_.step;
  own.samples = samples - next_sample();
  own.updates = updates - updates_done().updates;
  if (own.seed == progress_.seed) {
    own.seed.reset();
  }
}

/// Weights and state of the newest checkpoint, on all ranks.
std::optional<Progress>
Trainer::load(std::vector<std::string>& notes, const AcceptCheckpoint& accept) {
  auto saved = local_ ? load_local(notes, accept) : std::nullopt;
  if (!saved) {
    saved = load_checkpoint(*format_, saves_, *weights_, notes, ranks_, accept);
  }
  if (saved) {
    share_weights();
  }
  return saved;
}

/// The newest local checkpoint, where it is newer than those of the run's folder and every node has its
/// part, by itself or from another node.
std::optional<Progress>
Trainer::load_local(std::vector<std::string>& notes, const AcceptCheckpoint& accept) {
  const auto durable = std::stoll(on_first(ranks_, [&] {
    const auto steps = steps_of(*format_, saves_).value_or(std::vector<int64_t>());
    return std::to_string(steps.empty() ? -1 : steps.front());
  }));
  std::optional<Progress> progress;
  try {
    const auto step = local_->recover(durable, [&](const std::string& text) {
      notes.push_back("warning: " + text);
    });
    if (step) {
      const LocalFormat format(*local_, *step);
      const ReadBy by{local_->nodes().own(ranks_), machine_word() + format.place("").string()};
      progress = load_checkpoint(format, format.place(""), *weights_, notes, ranks_, accept, by);
      notes.push_back("the checkpoint of step " + std::to_string(*step) + " is a local one");
      local_step_ = *step;
      saved_step_ = durable;
    }
  } catch (const CollectiveError&) {
    throw;
  } catch (const Error& error) {
    if (durable < 0) {
      throw;
    }
    notes.push_back(std::string("warning: the local checkpoint is not used: ") + error.what());
  }
  return progress;
}

/// All ranks and the device have the parameters that were loaded.
void Trainer::share_weights() {
  session_->gradients->share_parameters();
  session_->gradients->wait_for_all();
  if (device_step_ != nullptr) {
    device_step_->send();
  }
}

void Trainer::count_on(const Progress& saved) {
  progress_.step = saved.step;
  progress_.samples = saved.samples;
  progress_.tokens = saved.tokens;
}

void Trainer::restore(const Progress& saved) {
  count_on(saved);
  evaluated_step_ = saved.step;
  saved_step_ = saved.step == local_step_ ? saved_step_ : saved.step; // `load_local` says it
  progress_.beginnings = saved.beginnings;
}

/// Frequent checkpoints on the nodes, where the recipe asks for them.
void Trainer::open_local(bool is_new) {
  const auto& checkpoint = session_->recipe.checkpoint;
  if (checkpoint.local_interval == 0) {
    return;
  }
  const Processes* processes = options_.processes;
  const int64_t local_rank = processes != nullptr ? processes->world().local_rank : ranks_.rank;
  Nodes nodes = nodes_of(ranks_, machine_word(), local_rank);
  local_meeting_ = processes != nullptr ? processes->meeting("local saves") : nullptr;
  LocalSaves::Terms terms{
      .folder = local_folder(session_->recipe, saves_, nodes.node),
      .copies = checkpoint.local_copies,
      .layout = local_layout(session_->mesh, nodes)};
  local_ = std::make_unique<LocalSaves>(
      host_.storage(),
      std::move(terms),
      std::move(nodes),
      ranks_,
      local_meeting_ ? local_meeting_->ranks() : ranks_
  );
  (void)together(ranks_, [&] {
    if (is_new) {
      local_->clear();
    }
    return std::string();
  });
  local_->plan(slices_of(*weights_));
}

/// Whether an update has made weights that no step can compute with. They are not saved: the step
/// that meets them finds the checkpoint before.
bool Trainer::are_spoiled() {
  if (largest(session_->mesh.all(), weights_->finite() ? 0 : 1) == 0) {
    return false;
  }
  const std::string text = "the weights after it are not all finite numbers";
  log_->line("step " + std::to_string(progress_.step) + " is not saved: " + text);
  note({.kind = "unsaved", .text = text});
  return true;
}

void Trainer::save_locally() {
  tell_local(local_->saves().wait());
  fetch_weights();
  if (are_spoiled()) {
    return;
  }
  note_state();
  const auto slices = slices_of(*weights_);
  try {
    local_->saves().begin({.step = progress_.step, .state = state_text(progress_), .slices = slices}
    );
  } catch (const CollectiveError&) {
    throw;
  } catch (const Error& error) {
    tell_local(BackgroundSaves::Outcome{.step = progress_.step, .error = error});
  }
  const bool meets = session_->mesh.world() == 1 || local_meeting_; // ranks that are threads do not
  if (!meets || !session_->recipe.checkpoint.async) {
    tell_local(local_->saves().wait());
  }
}

/// The run is finished, and its last checkpoint is in its folder.
void Trainer::end_local() {
  try {
    (void)together(ranks_, [&] {
      local_->clear();
      return std::string();
    });
  } catch (const CollectiveError&) {
    throw;
  } catch (const Error& error) {
    log_->line(std::string("warning: local checkpoints are not removed: ") + error.what());
  }
}

/// The first one is told, and each that fails.
void Trainer::tell_local(const std::optional<BackgroundSaves::Outcome>& saved) {
  for (const auto& warning : saved ? saved->warnings : std::vector<std::string>()) {
    log_->line("warning: " + warning);
  }
  if (saved && saved->error) {
    const std::string text = "the local checkpoint of step " + std::to_string(saved->step) +
                             " was not written: " + saved->error->what();
    log_->line("warning: " + text);
    note({.kind = "unsaved", .text = text});
  } else if (saved && std::exchange(first_local_, false)) {
    const auto& checkpoint = session_->recipe.checkpoint;
    log_->line(formatted(
        "step %6lld/%lld | saved locally in %s, as every %lld steps, with copies on %lld other nodes | "
        "%.0f ms, then %.0f ms in the background",
        static_cast<long long>(saved->step),
        static_cast<long long>(iterations_),
        checkpoint.local_dir.c_str(),
        static_cast<long long>(checkpoint.local_interval),
        static_cast<long long>(local_->copies()),
        1e3 * saved->copy_seconds,
        1e3 * saved->write_seconds
    ));
  }
}

/// Lets steps go on while checkpoints are written, where the recipe says so and there are some.
/// Ranks that are threads have no store to meet at.
void Trainer::open_saves() {
  const auto& checkpoint = session_->recipe.checkpoint;
  const bool several = session_->mesh.world() > 1;
  if (!checkpoint.async || checkpoint.interval == 0 || (several && !options_.processes)) {
    return;
  }
  meeting_ = several ? options_.processes->meeting("saves") : nullptr;
  background_ = std::make_unique<BackgroundSaves>(
      [this](const CheckpointContents& contents, const Ranks& ranks) {
        write_and_retain(*format_, saves_, contents, retention(), ranks);
      },
      ranks_,
      meeting_ ? meeting_->ranks() : Ranks()
  );
  background_->plan(slices_of(*weights_));
}

/// Host memory that saves take in addition to the steps'.
SaveBytes Trainer::save_bytes() const {
  SaveBytes bytes{.copy = background_ ? background_->bytes() : 0};
  bytes.copy += local_ ? local_->bytes() : 0;
  for (const Slice& slice : slices_of(*weights_)) {
    const bool is_there = slice.local.is_cpu() && slice.local.is_contiguous();
    bytes.staged =
        std::max(bytes.staged, is_there ? 0 : static_cast<int64_t>(slice.local.nbytes()));
  }
  return bytes;
}

/// Progress has all that a checkpoint keeps.
void Trainer::note_state() {
  progress_.guards = guards_.state();
  progress_.time = unix_now();
}

void Trainer::save(const Retention& retention) {
  settle_saves();
  if (saved_step_ == progress_.step || progress_.step == 0) {
    return;
  }
  const auto begin = Clock::now();
  fetch_weights();
  if (are_spoiled()) {
    return;
  }
  std::vector<std::string> notes;
  note_state();
  saving_ = work();
  save_checkpoint(*format_, saves_, progress_, *weights_, retention, notes, ranks_);
  saved_step_ = progress_.step;
  say_saved(progress_.step, formatted("%.0f ms", 1e3 * seconds_since(begin)));
  for (const auto& note : notes) {
    log_->line(note);
  }
}

/// Throws:  mh::Error where the run ends with weights that are not saved
void Trainer::require_saved() const {
  if (saved_step_ != progress_.step && progress_.step > 0) {
    throw Error(
        "after step " + std::to_string(progress_.step) +
            ", the last, the weights are not all finite numbers, and are not saved",
        "resume from the checkpoint before, with a lower optimizer.lr or a longer warm-up",
        exit_code::numbers
    );
  }
}

void Trainer::save_or_warn(const Retention& retention) {
  try {
    save(retention);
  } catch (const Error& error) {
    say_unsaved(progress_.step, error);
  }
}

/// A copy of the state is taken; what becomes of it is told by a later step.
void Trainer::save_in_background() {
  const auto& checkpoint = session_->recipe.checkpoint;
  if (checkpoint.if_busy == "skip" &&
      largest(session_->mesh.all(), background_->busy() ? 1 : 0) > 0) {
    log_->line(
        "step " + std::to_string(progress_.step) +
        " is not saved: the checkpoint before is still being written (checkpoint.if_busy)"
    );
    return;
  }
  settle_saves();
  fetch_weights();
  if (are_spoiled()) {
    return;
  }
  note_state();
  saving_ = work();
  const auto slices = slices_of(*weights_);
  try {
    background_->begin({.step = progress_.step, .state = state_text(progress_), .slices = slices});
  } catch (const CollectiveError&) {
    throw;
  } catch (const Error& error) {
    say_unsaved(progress_.step, error);
  }
}

void Trainer::tell(const std::optional<BackgroundSaves::Outcome>& saved) {
  if (!saved) {
    return;
  }
  if (saved->error) {
    say_unsaved(saved->step, *saved->error);
  } else {
    saved_step_ = saved->step;
    say_saved(
        saved->step,
        formatted(
            "%.0f ms, then %.0f ms in the background",
            1e3 * saved->copy_seconds,
            1e3 * saved->write_seconds
        )
    );
  }
  for (const auto& warning : saved->warnings) {
    log_->line("warning: " + warning);
  }
}

RunWork Trainer::work() const {
  return {
      progress_.step,
      session_->flops_per_sample() * static_cast<double>(progress_.samples),
      progress_.tokens};
}

void Trainer::say_saved(int64_t step, const std::string& time) {
  if (progress_log_) {
    progress_log_->saved(saving_);
  }
  log_->line(formatted(
      "step %6lld/%lld | saved in %s | %s",
      static_cast<long long>(step),
      static_cast<long long>(iterations_),
      format_->place(saves_).c_str(),
      time.c_str()
  ));
}

void Trainer::say_unsaved(int64_t step, const Error& error) {
  const std::string text = "the checkpoint of step " + std::to_string(step) +
                           " was not written, earlier ones are untouched: " + error.what();
  log_->line("warning: " + text);
  note({.kind = "unsaved", .text = text});
}

} // namespace mh
