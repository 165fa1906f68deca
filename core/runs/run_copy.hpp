#pragma once
/// The copy of a run folder in a store, for runs on machines whose disks are gone with their jobs: the
/// newest checkpoint, if it is on a disk, and the recipe, the log, the metrics and all other files.
///
///     s3://bucket/runs/a/checkpoints/step-000000001000/...   first, its manifest last
///     s3://bucket/runs/a/log.txt, metrics.jsonl, ...
///     s3://bucket/runs/a/recipe.toml                         last
///
/// It has the places of the run folder: commands read it as they do one, and a run that goes on where
/// its folder is gone fetches it.

#include "megahost/checkpoint_format.hpp"

#include <filesystem>
#include <optional>

namespace mh {

/// A run whose steps are over.
struct FinishedRun {
  std::filesystem::path folder;
  Path saves; ///< the place of its checkpoints
};

struct RunCopied {
  int64_t files = 0;
  uint64_t bytes = 0;
  std::optional<int64_t> step{}; ///< step of the checkpoint; none if there is none on a disk
};

/// Before a run begins. Nothing is written.
///
/// Throws:  mh::Error (exit code 5) if nothing can be written to `to`, or it holds a copy of another
///          run, which a new run would mix with its own
void require_copy_place(Storage& storage, const Path& to, bool goes_on);

/// Fetches the copy of a run that goes on where its folder is not there any more. Returns its files;
/// nothing if the folder is there, or no copy is.
///
/// Throws:  StorageError; then no run is in the folder, and another try fetches it again
int64_t restore_run(Storage& storage, const Path& from, const std::filesystem::path& folder);

/// Makes the copy, or brings one of an earlier time of the same run up to date.
///
/// Throws:  StorageError; what was copied before counts: a checkpoint is there whole, or not at all
RunCopied
copy_run(Storage& storage, const CheckpointFormat& format, const FinishedRun& run, const Path& to);

} // namespace mh
