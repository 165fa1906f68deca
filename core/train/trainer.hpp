#pragma once
/// The trainer behind `train`: its construction and the run of its steps are in trainer.cpp, a
/// single step and what the guards do about a bad one in trainer_step.cpp.

#include "core/base/seconds.hpp"
#include "core/checkpoint/background.hpp"
#include "core/checkpoint/copies.hpp"
#include "core/checkpoint/local_saves.hpp"
#include "core/checkpoint/run_folder.hpp"
#include "core/mesh/agree.hpp"
#include "core/records/journal.hpp"
#include "core/records/profile.hpp"
#include "core/records/progress_log.hpp"
#include "core/records/rank_times.hpp"
#include "core/records/run_log.hpp"
#include "core/session/session.hpp"
#include "core/step/batches.hpp"
#include "core/step/nan_watch.hpp"
#include "core/step/update_schedule.hpp"
#include "core/step/weights.hpp"
#include "core/train/checkpointing.hpp"
#include "core/train/closing.hpp"
#include "core/train/device_step.hpp"
#include "core/train/given_weights.hpp"
#include "core/train/guards.hpp"
#include "core/train/signals.hpp"
#include "core/train/start_block.hpp"
#include "core/train/train.hpp"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace mh {

/// The output of ranks that print nothing.
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
  [[nodiscard]] NextCommand train_on() const;
  void say_how_to_resume();
  void show_profile();
  [[nodiscard]] int64_t planned_peak();
  void show_peak();

  /// The inputs of a step, known before it begins.
  struct Prepared {
    int64_t number = 1; ///< the step's
    int64_t batch = 0;  ///< samples over all ranks
    std::vector<Batch> batches{};
    double data_seconds = 0;
    double weight_decay = 0;
    StepOptions options{};
  };

  [[nodiscard]] Prepared prepare(int64_t steps_before = 0, int64_t samples_before = 0);
  [[nodiscard]] bool goes_on_after(int64_t number) const;
  [[nodiscard]] StepResult run_on_device(const Prepared& now, const StepOptions& options);
  void step();
  /// The host's weights and state are those of the last step.
  void fetch_weights() const;
  [[noreturn]] void stop_at(const std::string& why, const std::string& hint = {});
  void rewind(const std::string& why);
  void open_log();
  [[nodiscard]] std::string samples_text() const;
  [[nodiscard]] std::string origin();
  [[nodiscard]] std::optional<double> weights_norm() const;
  void resume(std::vector<std::string>& notes);
  [[nodiscard]] std::optional<GivenWeights> load_given(Weights* weights);
  void start_from(const GivenWeights& given, std::vector<std::string>& notes);
  std::optional<Progress> load(std::vector<std::string>& notes, const AcceptCheckpoint& accept);
  [[nodiscard]] std::optional<Progress>
  load_local(std::vector<std::string>& notes, const AcceptCheckpoint& accept);
  void share_weights();
  void count_on(const Progress& saved);
  void restore(const Progress& saved);

  [[nodiscard]] int64_t next_sample() const {
    return progress_.samples + guards_.skipped_samples() + progress_.beginnings.samples;
  }

  [[nodiscard]] uint64_t seed() const {
    return static_cast<uint64_t>(progress_.beginnings.seed.value_or(progress_.seed));
  }

  /// Steps without an update move no schedule.
  [[nodiscard]] Completed updates_done() const {
    const int64_t skipped = guards_.skipped();
    const int64_t samples = progress_.samples - skipped * session_->recipe.batch.global;
    return {progress_.step - skipped, std::max<int64_t>(0, samples)};
  }

  /// Does what steps wait for, and notes in the journal how long.
  template <class Action>
  void timed(const char* kind, const Action& action) {
    const auto begin = Clock::now();
    action();
    note({.kind = kind, .seconds = seconds_since(begin)});
  }

  /// Rank 0 keeps the journal; of what ends the run, the rank that it happens to.
  void note(JournalEvent event) const {
    if (ranks_.rank == 0) {
      event.step = progress_.step;
      journal_.note(std::move(event));
    }
  }

  void compare_ranks(const PartTimes& times);
  void compare_copies(std::span<const Batch> batches, const StepOptions& options);
  [[nodiscard]] std::optional<DifferentCopies> copies_that_differ();
  [[nodiscard]] std::string copies_again(std::span<const Batch> batches, StepOptions options);
  void examine(
      const std::string& why,
      const StepResult& first,
      const StepResult& again,
      std::span<const Batch> batches,
      const StepOptions& options
  );
  void evaluate();
  void show_kept_weights();
  void open_saves();
  void open_local(bool is_new);
  bool are_spoiled();
  void save_locally();
  void end_local();
  void tell_local(const std::optional<BackgroundSaves::Outcome>& saved);
  [[nodiscard]] SaveBytes save_bytes() const;
  void note_state();
  [[nodiscard]] RunWork work() const;
  void save(const Retention& retention);
  void require_saved() const;
  void save_or_warn(const Retention& retention);
  void save_in_background();
  void tell(const std::optional<BackgroundSaves::Outcome>& saved);
  void say_saved(int64_t step, const std::string& time);
  void say_unsaved(int64_t step, const Error& error);

  /// The save that is in flight, if there is one, is over and told.
  void settle_saves() {
    tell(background_ ? background_->wait() : std::nullopt);
    tell_local(local_ ? local_->saves().wait() : std::nullopt);
  }

  [[nodiscard]] Retention retention() const { return retention_of(session_->recipe.checkpoint); }

  [[nodiscard]] bool due(int64_t interval) const {
    return interval > 0 && progress_.step % interval == 0;
  }

  Host& host_;
  const TrainOptions& options_;
  Output& output_;
  Silence silence_;
  Journal journal_;
  StopSignals signals_;
  Clock::time_point start_ = Clock::now();
  Recipe::Load load_; // what this start loads that is not its own
  std::unique_ptr<Session> session_;
  Ranks ranks_; // all ranks of the run
  std::unique_ptr<CheckpointFormat> format_;
  std::filesystem::path folder_; // folder of the run, the same on every rank
  Path saves_;                   // where its checkpoints are
  std::unique_ptr<FileLock> lock_;
  std::unique_ptr<Weights> weights_;
  std::unique_ptr<DeviceStep> device_step_;     // null: LibTorch's operators compute
  std::optional<Prepared> ahead_;               // the step that the device has begun
  std::unique_ptr<Meeting> meeting_;            // where ranks that save in the background meet
  std::unique_ptr<BackgroundSaves> background_; // null: steps wait for each save
  std::unique_ptr<Meeting> local_meeting_;      // where those of `local_` meet
  std::unique_ptr<LocalSaves> local_;           // null: no checkpoints on the nodes
  std::unique_ptr<Prefetcher> data_;
  Guards guards_;
  std::unique_ptr<NanWatch> watch_; // null unless --debug
  std::unique_ptr<RunLog> log_;
  std::optional<ProgressLog> progress_log_;  // progress.txt: rank 0's, if log.progress
  std::optional<RankComparison> comparison_; // null on one rank
  Progress progress_;
  RunWork saving_; // what was done at the last save that is not a local one
  DevicePeak peak_;
  int64_t iterations_;
  Profile profile_;
  std::optional<double> last_rate_{}; // learning rate of this start's newest step
  bool first_step_ = true;            // the next step is the first of this start
  bool first_local_ = true;           // no local checkpoint of this start was told
  int64_t local_step_ = -1;           // the local checkpoint that this start goes on from
  int64_t saved_step_ = -1;
  int64_t same_step_ = -1; // the last one after which copies of weights were the same
  int64_t evaluated_step_ = -1;
};

} // namespace mh
