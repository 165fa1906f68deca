#include "core/runs/run_copy.hpp"

#include "core/base/text.hpp"
#include "core/checkpoint/detect_format.hpp"
#include "core/formats/dcp_metadata.hpp"
#include "core/formats/manifest.hpp"
#include "core/storage/copy_object.hpp"
#include "core/storage/file_system.hpp"
#include "core/storage/step_folder.hpp"
#include "megahost/error.hpp"

#include <algorithm>
#include <cerrno>
#include <vector>

namespace mh {

namespace {

constexpr const char* kRecipeFile = "recipe.toml";

/// The files below a folder whose names do not begin with a dot, by names from there on; none of those
/// below `without`.
void find_files(
    const Path& folder, const Path& below, const Path& without, std::vector<Path>& ret_names
) {
  for (const std::string& name : file_system().list(folder / below)) {
    const Path path = below / name;
    const auto kind = file_system().kind(folder / path);
    if (kind == FileSystem::Kind::directory && folder / path != without) {
      find_files(folder, path, without, ret_names);
    } else if (kind == FileSystem::Kind::file && !name.starts_with('.')) {
      ret_names.push_back(path);
    }
  }
}

/// Whether a step counts from the moment on when it is there.
bool commits(const Path& name) {
  return name.filename() == kManifestName || name.filename() == kDcpMetadataName;
}

/// All objects below a prefix, by names from there on.
void find_objects(
    Storage& storage, const Path& prefix, const Path& below, std::vector<Path>& ret_names
) {
  for (const Storage::Item& item : storage.list(prefix / below)) {
    if (item.is_prefix) {
      find_objects(storage, prefix, below / item.name, ret_names);
    } else {
      ret_names.push_back(below / item.name);
    }
  }
}

/// Copies the newest checkpoint, the object that commits it last; one that is there already stays.
/// Returns the folder with the folders of steps.
Path copy_checkpoint(
    Storage& storage,
    const CheckpointFormat& format,
    const FinishedRun& run,
    const Path& to,
    RunCopied& ret_copied
) {
  const auto steps = steps_of(format, run.saves);
  if (!steps || steps->empty()) {
    return format.place(run.saves);
  }
  ret_copied.step = steps->front();
  const Path folder = format.open(run.saves, steps->front())->path();
  const Path copy = to / folder.lexically_relative(run.saves);
  std::vector<Storage::Item> items = local_storage().list(folder);
  std::ranges::stable_partition(items, [](const auto& item) { return !commits(item.name); });
  const bool is_there = std::ranges::any_of(items, [&](const Storage::Item& item) {
    return commits(item.name) && storage.contains(copy / item.name);
  });
  for (const Storage::Item& item : items) {
    if (!is_there && !item.is_prefix) {
      ret_copied.bytes +=
          copy_object(local_storage(), folder / item.name, storage, copy / item.name);
      ++ret_copied.files;
    }
  }
  return folder.parent_path();
}

} // namespace

void require_copy_place(Storage& storage, const Path& to, bool goes_on) {
  if (!scheme_of(to.native())) {
    throw Error(
        "--copy-to " + to.string() + " is no place in a store", "name one, STORE://BUCKET/PATH"
    );
  }
  require_commits(storage, to);
  if (!goes_on && storage.contains(to / kRecipeFile)) {
    throw Error(
        "--copy-to " + to.string() + " holds the copy of another run",
        "name another place, or go on with --resume",
        exit_code::data
    );
  }
}

int64_t restore_run(Storage& storage, const Path& from, const std::filesystem::path& folder) {
  std::error_code ignored;
  if (std::filesystem::exists(folder / kRecipeFile, ignored) ||
      !storage.contains(from / kRecipeFile)) {
    return 0;
  }
  std::vector<Path> names;
  find_objects(storage, from, "", names);
  const auto is_last = [](const Path& name) {
    return name == kRecipeFile ? 2 : commits(name) ? 1 : 0;
  };
  std::ranges::stable_sort(names, {}, is_last);
  for (const Path& name : names) {
    copy_object(storage, from / name, local_storage(), folder / name);
  }
  return std::ssize(names);
}

RunCopied
copy_run(Storage& storage, const CheckpointFormat& format, const FinishedRun& run, const Path& to) {
  RunCopied copied;
  const bool on_disk = !scheme_of(run.saves.native());
  const Path steps = on_disk ? copy_checkpoint(storage, format, run, to, copied) : Path();
  std::vector<Path> names;
  find_files(run.folder, "", steps, names);
  std::ranges::stable_partition(names, [](const Path& name) { return name != kRecipeFile; });
  for (const Path& name : names) {
    copied.bytes += copy_object(local_storage(), run.folder / name, storage, to / name);
    ++copied.files;
  }
  return copied;
}

} // namespace mh
