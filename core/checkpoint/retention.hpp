#pragma once
/// The checkpoints of a run that stay, whatever format it is saved in.
///
/// ```cpp
/// const mh::Retention retention{.keep = 3, .every = 1000, .best = 1};
/// mh::remove_old_checkpoints(format, "runs/a", retention, warn);
/// ```

#include "core/storage/step_folder.hpp"
#include "megahost/checkpoint_format.hpp"
#include "megahost/recipe.hpp"

#include <cstdint>
#include <optional>
#include <vector>

namespace mh {

/// Rules, each of which keeps some checkpoints: one that no rule keeps is removed.
struct Retention {
  int64_t keep = 0;  ///< the newest; 0: all, whatever the other rules are
  int64_t every = 0; ///< steps that this divides; 0: none
  int64_t best = 0;  ///< number of lowest validation losses, of checkpoints evaluated at their step
  double for_hours = 0; ///< checkpoints saved less than so many hours ago
  double per_hours = 0; ///< the first that was saved in each span of so many hours; 0: none
};

/// A recipe's rules.
[[nodiscard]] Retention retention_of(const Recipe::Checkpoint& recipe);

/// The facts of a checkpoint that the rules look at.
struct SavedStep {
  int64_t step = 0;
  std::optional<double> time{}; ///< seconds since 1970 at which it was saved; older ones: not known
  std::optional<double> loss{}; ///< validation loss of its weights
};

/// The steps that no rule keeps. `steps`: newest first; `now`: seconds since 1970.
[[nodiscard]] std::vector<int64_t>
old_steps(const std::vector<SavedStep>& steps, const Retention& retention, double now);

/// The steps of a folder that no rule keeps, without the newest that is whole.
///
/// Throws:  mh::Error (exit code 5) if none is whole
[[nodiscard]] std::vector<int64_t> old_checkpoints(
    const CheckpointFormat& format,
    const Path& folder,
    const Retention& retention,
    const StepFolder::Warn& warn
);

/// Removes them. Failures are warned of; what another process reads on this disk stays for now.
void remove_old_checkpoints(
    const CheckpointFormat& format,
    const Path& folder,
    const Retention& retention,
    const StepFolder::Warn& warn
);

} // namespace mh
