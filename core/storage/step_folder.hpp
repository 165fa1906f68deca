#pragma once
/// A folder with one directory per saved step, each of which is there completely or not at all,
/// whenever the process or the machine stops.
///
///     root/step-000000001000/      committed
///     root/step-000000002000.tmp-ID/    being written; dead if no process writes it
///     root/LATEST                  the newest step's name, for people and scripts
///
///     mh::StepFolder folder(storage, "runs/a/checkpoints", warn);
///     folder.recover();
///     const mh::Path aside = folder.begin(1000);
///     ... write files into `aside`, each synced, the one that vouches for the others last ...
///     folder.commit(1000);
///     folder.keep_last(3, verify);

#include "core/storage/storage.hpp"

#include <functional>
#include <optional>

namespace mh {

class StepFolder {
public:
  using Warn = std::function<void(const std::string& sentence)>;
  /// Throws mh::Error if the directory is not whole.
  using Verify = std::function<void(const Path& directory)>;

  /// `id` keeps this writer's directories apart from those of a process that died, or that should
  /// have: letters and digits. Nothing is read or written yet.
  StepFolder(Storage& storage, Path root, Warn warn, std::string id = random_id());

  [[nodiscard]] const Path& root() const { return root_; }

  [[nodiscard]] Path path(int64_t step) const;
  /// Committed steps, newest first; none if the folder does not exist. None of them is verified.
  [[nodiscard]] std::vector<int64_t> steps() const;

  /// The newest step that `verify` lets pass. Says each newer one that it does not.
  ///
  /// Throws:  mh::Error (exit code 5) if there are steps and none passes
  [[nodiscard]] std::optional<int64_t> newest(const Verify& verify) const;

  /// The same of these steps, newest first: of a list that ranks share.
  [[nodiscard]] std::optional<int64_t>
  newest(const std::vector<int64_t>& all, const Verify& verify) const;

  /// For one process of a run, once, before it saves: makes the folder, removes what dead processes
  /// left half-written or half-removed.
  void recover();

  /// An empty directory for the step's files.
  [[nodiscard]] Path begin(int64_t step);
  /// Makes the step's directory the real one, in place of any of the same step. Returns when that
  /// is on the disk. What may still fail afterwards (LATEST, removing a replaced directory) is only
  /// warned of.
  ///
  /// Throws:  StorageError; then the step's old directory is in place, or, if only the last sync
  /// failed,
  ///          the new one, which may not outlive a power cut
  void commit(int64_t step);
  /// Gives up after `begin`: removes the directory aside as far as possible.
  void abandon(int64_t step) noexcept;

  /// Removes all but the newest `count` steps, and never the newest that `verify` lets pass;
  /// nothing if none passes. Failures are warned of.
  void keep_last(int64_t count, const Verify& verify);

  [[nodiscard]] static std::string random_id();

private:
  [[nodiscard]] Path aside(int64_t step) const;
  void discard(int64_t step, const Path& directory);

  Storage& storage_;
  Path root_;
  Warn warn_;
  std::string id_;
};

} // namespace mh
