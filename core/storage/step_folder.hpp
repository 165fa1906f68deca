#pragma once
/// A prefix with one folder per saved step, each of which is there completely or not at all,
/// whenever the process or the machine stops.
///
///     root/step-000000001000/manifest      committed: its manifest is there
///     root/step-000000002000/              without one: being written, or dead
///     root/step-000000001000.2/manifest    step 1000 saved again; the highest number counts
///     root/LATEST                          the newest folder's name, for people and scripts
///
/// ```cpp
/// mh::StepFolder folder(storage, "runs/a/checkpoints", "manifest", warn);
/// folder.recover();
/// const mh::Path directory = folder.begin(1000);
/// // put objects into `directory`, new ones each
/// folder.commit(1000, manifest);
/// folder.remove(500);
/// ```
///
/// A folder is written once, its manifest last, and removed manifest first: no object ever changes,
/// so that the same holds on a disk and in an object store.

#include "core/storage/file_lock.hpp"
#include "megahost/storage.hpp"

#include <functional>
#include <map>
#include <optional>

namespace mh {

/// The use of a step's folder.
enum class StepUse : uint8_t {
  counts,    ///< it is its step's checkpoint
  replaced,  ///< a later folder of its step counts
  unfinished ///< without its manifest: being written or removed, or left so
};

struct FoundStep {
  int64_t step = 0;
  int64_t number = 1; ///< number of the save of this step, from 1
  std::string name{}; ///< below the prefix
  StepUse use = StepUse::counts;
};

class StepFolder {
public:
  using Warn = std::function<void(const std::string& sentence)>;
  /// Throws mh::Error if the folder is not whole.
  using Verify = std::function<void(const Path& directory)>;

  /// `manifest` is the name of the object that commits a folder. Nothing is read or written yet.
  StepFolder(Storage& storage, Path root, std::string manifest, Warn warn);

  [[nodiscard]] const Path& root() const { return root_; }

  /// All folders, newest first: by step, then by how often it was saved.
  [[nodiscard]] std::vector<FoundStep> folders() const;

  /// The folder that counts for a step; where none does, the one that would be written first.
  [[nodiscard]] Path path(int64_t step) const;
  /// Committed steps, newest first. None of them is verified.
  [[nodiscard]] std::vector<int64_t> steps() const;

  /// The newest step that `verify` lets pass. Says each newer one that it does not.
  ///
  /// Throws:  mh::Error (exit code 5) if there are steps and none passes; NewerVersion, as `verify`
  [[nodiscard]] std::optional<int64_t> newest(const Verify& verify) const;

  /// For one process of a run, once, before it saves: removes what dead processes left
  /// half-written or half-removed, and what a later folder of its step replaces.
  void recover();

  /// A new folder for the step's objects.
  [[nodiscard]] Path begin(int64_t step);
  /// Writes the manifest: the step's folder counts from now on, in place of any of the same step. A
  /// failure afterwards (LATEST, removing a replaced folder) is only warned of.
  ///
  /// Throws:  StorageError; then the step's old folder counts, or, if only the last sync of a disk
  ///          failed, the new one, which may not outlive a power cut
  void commit(int64_t step, std::string_view manifest);
  /// Gives up after `begin`: removes the folder as far as possible.
  void abandon(int64_t step) noexcept;

  /// Removes a step, unless another process reads it on this disk (`hold_step`).
  ///
  /// Returns: whether it is gone
  bool remove(int64_t step);

private:
  void discard(const std::string& name);

  Storage& storage_;
  Path root_;
  std::string manifest_;
  Warn warn_;
  std::map<int64_t, std::string> begun_; // step, name of its folder
};

/// Throws what a commit below `root` would where the storage is only read, before a run has worked
/// for hours. Nothing is written.
void require_commits(Storage& storage, const Path& root);

/// Keeps a step's folder on a disk from being removed by `StepFolder::remove` while the result lives;
/// nothing where that cannot be: in an object store, on a disk that has no locks.
[[nodiscard]] std::optional<HeldFile> hold_step(const Path& directory, const std::string& manifest);

/// The newest of `steps` that `verify` lets pass, as StepFolder::newest. `root` is where they are.
[[nodiscard]] std::optional<int64_t> newest_step(
    const Path& root,
    const std::vector<int64_t>& steps,
    const std::function<void(int64_t step)>& verify,
    const StepFolder::Warn& warn
);

} // namespace mh
