#pragma once
/// The state that a run needs to continue as if it had never stopped.

#include "core/checkpoint/mapped_slices.hpp"
#include "core/checkpoint/retention.hpp"
#include "core/step/weights.hpp"
#include "core/train/guards.hpp"
#include "megahost/checkpoint_format.hpp"
#include "megahost/host.hpp"
#include "megahost/recipe.hpp"

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace mh {

/// The distance of a run's random numbers, data and updates from its own counts, where it took those
/// of another's checkpoint, or began them anew while it counts steps on (`load`).
struct Beginnings {
  std::optional<int64_t> seed{}; ///< the checkpoint's; else the recipe's
  int64_t random = 0;            ///< step 1 has the random numbers of step `random` + 1
  int64_t samples = 0;           ///< sample 0 is the data's sample `samples`
  int64_t updates = 0;           ///< updates of the optimizer's state before the run's first

  [[nodiscard]] bool operator==(const Beginnings&) const = default;
};

/// The part of a run's state that is no tensor.
struct Progress {
  int64_t step = 0;    ///< completed, skipped ones included
  int64_t samples = 0; ///< consumed, without those that rewinds left out
  int64_t tokens = 0;
  int64_t seed = 0;
  int64_t threads = 0;
  std::string cpu_level;
  GuardState guards{};
  Beginnings beginnings{};
  double time = 0;                             ///< seconds since 1970 at which it was saved
  std::optional<double> validation_loss{};     ///< the weights' own, where they were evaluated
  std::vector<std::string> plugins;            ///< "org.megahost.llama 0.1.0"
  std::string schedule;                        ///< UpdateSchedule::text()
  std::map<std::string, std::string> sections; ///< sections of the recipe, see `section_texts`
  std::string data;                            ///< `data_fingerprint`; older checkpoints: empty
};

/// The difference between the tensors of a checkpoint and those of a run, on all its ranks.
struct TensorFit {
  std::vector<std::string> unused; ///< tensors of the checkpoint that no rank asks for
  std::vector<std::string>
      misfit; ///< tensors of the run that the checkpoint lacks or has in another shape
};

/// Judges a checkpoint before its tensors are read: throws to refuse it.
using AcceptCheckpoint = std::function<void(const Progress& saved, const TensorFit& fit)>;

/// Refuses a checkpoint with tensors that the model does not ask for, by their names.
void require_all_used(const Progress& saved, const TensorFit& fit);

/// The format in which a recipe's run is saved, in the host's storage.
[[nodiscard]] std::unique_ptr<CheckpointFormat> checkpoint_format(const Recipe& recipe, Host& host);

/// Throws:  mh::Error (exit code 5) if a run has no checkpoint, with what to do: `help`, unless that
///          is empty
void require_checkpoint(
    const CheckpointFormat& format,
    const std::filesystem::path& run,
    const std::function<std::string()>& help = {}
);

/// Writes a checkpoint, whole or not at all, and removes those that need not stay.
///
/// Throws:  as save_checkpoint
/// Ranks:   all
void write_and_retain(
    const CheckpointFormat& format,
    const std::filesystem::path& run,
    const CheckpointContents& contents,
    const Retention& retention,
    const Ranks& ranks
);

/// Writes a run's weights and state by it. `notes` gets what went wrong afterwards.
///
/// Throws:  mh::Error (exit code 5) naming path and cause
/// Ranks:   all; each writes the slices that it alone is told to
void save_checkpoint(
    const CheckpointFormat& format,
    const std::filesystem::path& run,
    const Progress& progress,
    const Weights& weights,
    const Retention& retention,
    std::vector<std::string>& notes,
    const Ranks& ranks = {}
);

/// The slices of a rank's tensors of a checkpoint: views of the weights.
[[nodiscard]] std::vector<Slice> slices_of(const Weights& weights);

/// A run's state as a checkpoint keeps it.
[[nodiscard]] std::string state_text(const Progress& progress);

/// The opposite. `where` is the checkpoint, for messages.
[[nodiscard]] Progress read_state(const std::string& text, const std::string& where);

/// Says on rank 0, before they are read, how many bytes its slices of a checkpoint are, and how much
/// memory reading them takes in addition to what they fill; of less than 1 GB nothing.
void say_load(const CheckpointReader& saved, const MappedSlices& slices, const Ranks& ranks);

/// The ranks that one checkpoint is read by, where each node has its own.
struct ReadBy {
  Ranks node;          ///< ranks of this one's node
  std::string machine; ///< the word of `read_together`
};

/// Loads the newest checkpoint that is whole; nothing if there is none. `notes` gets a sentence for
/// each newer one that was passed over. Each rank reads its own slices, once.
///
/// Throws:  mh::Error (exit code 5) if there are checkpoints, but none is whole or fits the model,
///          and what `accept` throws; weights may be half loaded if none is whole
/// Ranks:   all, under any layout; rank 0 lists the checkpoints
[[nodiscard]] std::optional<Progress> load_checkpoint(
    const CheckpointFormat& format,
    const std::filesystem::path& run,
    Weights& weights,
    std::vector<std::string>& notes,
    const Ranks& ranks = {},
    const AcceptCheckpoint& accept = require_all_used,
    const std::optional<ReadBy>& by = std::nullopt
);

/// Sentences about what may make the last bits differ from those of an uninterrupted run.
[[nodiscard]] std::vector<std::string> differences(const Progress& saved, const Progress& now);

} // namespace mh
