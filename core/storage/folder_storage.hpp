#pragma once
/// A folder that others may have made, and out of which no link leads.

#include "megahost/storage.hpp"

namespace mh {

/// A storage that reads a folder and does not follow links out of it: whoever made a checkpoint does
/// not choose other files of this machine that are read in its stead. Links inside the folder are
/// followed; and of a model in Hugging Face's cache, MODEL/snapshots/REVISION, those to MODEL/blobs.
/// An object store has no links.
///
/// Thread:  any, as the other storage
class FolderStorage final : public Storage {
public:
  /// `all` outlives it.
  FolderStorage(Storage& all, const Path& folder);

  [[nodiscard]] std::unique_ptr<Upload> put(const Path& path, Existing existing) override;
  /// Throws:  mh::Error (exit code 5) if the path leads out of the folder
  [[nodiscard]] std::unique_ptr<ReadFile> get(const Path& path) override;
  [[nodiscard]] bool contains(const Path& path) override;
  /// Throws:  mh::Error (exit code 5) if the path leads out of the folder
  [[nodiscard]] std::vector<Item> list(const Path& prefix) override;
  void remove(const Path& path) override;
  void remove_all(const Path& prefix) override;
  [[nodiscard]] std::vector<Unfinished> unfinished(const Path& prefix) override;
  void remove_unfinished(const Path& prefix) override;

private:
  void require_inside(const Path& path) const;

  Storage& all_;
  Path folder_;
  Path real_;  ///< the folder without links; empty in an object store
  Path blobs_; ///< folder of a snapshot's files in Hugging Face's cache; else empty
};

} // namespace mh
