#pragma once
/// The places of a run's recipe, metrics, log and checkpoints: the first three are files of its run
/// folder, checkpoints are in the storage at `checkpoint.dir`, which is the run folder unless the
/// recipe names another in `run_dir`.

#include "core/storage/file_lock.hpp"
#include "megahost/checkpoint_format.hpp"
#include "megahost/recipe.hpp"

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

namespace mh {

/// The folder a run takes: `wanted`, or if a fresh run finds another run there, the first free one
/// of wanted-2, wanted-3, ... A resumed run takes the one of them whose run was started last, or
/// `wanted` itself where a person has `named` it.
[[nodiscard]] std::filesystem::path
run_folder(const std::filesystem::path& wanted, bool resume, bool named = false);

/// The folder of checkpoints of the run that took a folder: with the number of the folder, if it
/// has one.
[[nodiscard]] Path checkpoint_folder(const Recipe& recipe, const std::filesystem::path& taken);

/// Throws:  mh::Error if a recipe that parts checkpoints from the run folder names a place where
///          there are some: those of another run, which a new run would go on from or remove
void require_no_checkpoint(
    const Recipe& recipe, const CheckpointFormat& format, const std::filesystem::path& taken
);

/// A sentence about the newest checkpoint of the runs that were given the folder which `taken` was
/// given, and the words that go on with it; empty where there is none.
[[nodiscard]] std::string other_checkpoint(
    const Recipe& recipe, const CheckpointFormat& format, const std::filesystem::path& taken
);

/// A sentence about a recipe that a run keeps in its folder, while the folder that it names is
/// another: the run was moved. Empty for other recipes.
[[nodiscard]] std::string moved_run(
    const Recipe& recipe, const CheckpointFormat& format, const std::filesystem::path& recipe_file
);

/// Notes for the user if that is not the folder that was asked for; `named`: on the command line,
/// and so when the run goes on.
[[nodiscard]] std::vector<std::string> folder_notes(
    const std::filesystem::path& wanted, const std::filesystem::path& taken, bool resume, bool named
);

/// The file that a run holds a lock on while it is.
[[nodiscard]] std::filesystem::path run_lock(const std::filesystem::path& folder);

/// Makes the folder and takes it for this process as long as the result lives.
///
/// Throws:  mh::Error naming the path and the cause: it cannot be made, or another process has it
[[nodiscard]] std::unique_ptr<FileLock> take_run_folder(const std::filesystem::path& folder);

/// Writes the resolved recipe into a folder, as recipe.toml: from now on a run is there.
///
/// Throws:  mh::Error naming the path and the cause
void write_run_recipe(const std::filesystem::path& folder, const std::string& recipe_text);

} // namespace mh
