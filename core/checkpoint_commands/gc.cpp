// megahost checkpoint gc: what a run's checkpoints do not need is removed.

#include "core/base/number_text.hpp"
#include "core/base/text.hpp"
#include "core/checkpoint/checkpoint.hpp"
#include "core/checkpoint/detect_format.hpp"
#include "core/checkpoint/native.hpp"
#include "core/checkpoint/retention.hpp"
#include "core/checkpoint/run_folder.hpp"
#include "core/checkpoint_commands/commands.hpp"
#include "core/checkpoint_commands/saved.hpp"
#include "core/draw/report.hpp"
#include "core/foreign/dcp.hpp"
#include "core/options/read.hpp"
#include "core/storage/step_folder.hpp"
#include "megahost/error.hpp"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <optional>
#include <set>

namespace mh {

namespace {

/// Bytes of the objects below a prefix.
uint64_t bytes_below(Storage& storage, const Path& prefix) {
  uint64_t bytes = 0;
  for (const Storage::Item& item : storage.list(prefix)) {
    const Path path = prefix / item.name;
    bytes += item.is_prefix ? bytes_below(storage, path) : storage.get(path)->size();
  }
  return bytes;
}

/// An object to remove, and the reason.
struct Garbage {
  Path path;
  std::string why;
  uint64_t bytes = 0;
  bool is_folder = true;        ///< a step's folder; else a file
  std::optional<int64_t> old{}; ///< the step, which counts
};

/// Files of a step's folder that its manifest does not name.
void add_orphans(Storage& storage, const Path& folder, std::vector<Garbage>& ret_garbage) {
  const Checkpoint saved(storage, folder);
  std::set<std::string> named{kManifestName};
  for (const StoredFile& file : saved.manifest().files) {
    named.insert(file.name);
  }
  for (const Storage::Item& item : storage.list(folder)) {
    if (!item.is_prefix && !named.contains(item.name)) {
      const Path path = folder / item.name;
      ret_garbage.push_back({path, "no manifest names it", storage.get(path)->size(), false});
    }
  }
}

std::vector<Garbage> garbage_of(
    Storage& storage,
    const StepFolder& steps,
    const std::vector<int64_t>& old,
    const std::string& manifest
) {
  std::vector<Garbage> garbage;
  for (const FoundStep& found : steps.folders()) {
    const Path path = steps.root() / found.name;
    const bool is_old = found.use == StepUse::counts && std::ranges::count(old, found.step) > 0;
    const std::string why = found.use == StepUse::unfinished ? "it is not complete"
                            : found.use == StepUse::replaced ? "its step was saved again"
                            : is_old                         ? "older than those that are kept"
                                                             : "";
    if (!why.empty()) {
      garbage.push_back({path, why, bytes_below(storage, path)});
      garbage.back().old = is_old ? std::optional(found.step) : std::nullopt;
    } else if (manifest == kManifestName) {
      try {
        add_orphans(storage, path, garbage);
      } catch (const Error& error) { // a damaged one is not gc's to judge
        warn(error.what());
      }
    }
  }
  return garbage;
}

} // namespace

int command_checkpoint_gc(const Invocation& invocation, Host& host) {
  const Path run = invocation.arguments.front();
  Storage& storage = host.storage();
  for (const char* rule : {"--keep-every", "--keep-best", "--keep-for", "--keep-per"}) {
    if (invocation.has(rule) && !invocation.has("--keep")) {
      throw Error(
          std::string(rule) + " is given, and --keep is not", "--keep N says how many stay"
      );
    }
  }
  std::unique_ptr<FileLock> lock; // as a run that writes takes it
  std::error_code ignored;
  if (std::filesystem::exists(run / "recipe.toml", ignored)) {
    lock = take_run_folder(run);
  }
  const NativeFormat native({}, {.storage = storage});
  const DcpFormat dcp({}, {.storage = storage});

  struct Kind {
    const CheckpointFormat& format;
    Path root;
    const char* manifest;
  };

  const Kind kinds[] = {
      {native, native.place(run), kManifestName}, {dcp, run / kDcpSteps, kDcpMetadataName}};
  constexpr int64_t kMost = 1'000'000'000'000;
  const Retention retention{
      .keep = number_option(invocation, "--keep", 0, 1, kMost), // all unless given
      .every = number_option(invocation, "--keep-every", 0, 1, kMost),
      .best = number_option(invocation, "--keep-best", 0, 1, kMost),
      .for_hours = real_option(invocation, "--keep-for", 0, 0, 1e9),
      .per_hours = real_option(invocation, "--keep-per", 0, 0, 1e9)};
  const bool is_dry = invocation.has("--dry-run");
  uint64_t bytes = 0;
  size_t count = 0, folders = 0;
  for (const Kind& kind : kinds) {
    if (storage.list(kind.root).empty()) {
      if (!is_dry) {
        storage.remove_unfinished(kind.root); // those of a run that was killed in its first save
      }
      continue;
    }
    ++folders;
    StepFolder steps(storage, kind.root, kind.manifest, warn);
    const auto old = old_checkpoints(kind.format, run, retention, warn);
    for (const Garbage& one : garbage_of(storage, steps, old, kind.manifest)) {
      if (!is_dry && one.old && !steps.remove(*one.old)) {
        warn(one.path.string() + " stays: another process reads it");
        continue;
      }
      if (!is_dry && one.is_folder) {
        storage.remove(one.path / kind.manifest); // first: it does not count from now on
        storage.remove_all(one.path);
      } else if (!is_dry) {
        storage.remove(one.path);
      }
      bytes += one.bytes;
      ++count;
      std::printf(
          "%s %s, %s: %s\n",
          is_dry ? "would remove" : "removed",
          one.path.c_str(),
          bytes_text(static_cast<int64_t>(one.bytes)).c_str(),
          one.why.c_str()
      );
    }
    if (!is_dry) {
      storage.remove_unfinished(kind.root);
    }
  }
  if (folders == 0) {
    const auto other = find_format(run, host);
    const auto items = storage.list(run);
    const bool is_export = std::ranges::none_of(items, &Storage::Item::is_prefix);
    if (!is_dry && is_export && scheme_of(run.native())) { // whose command was killed
      storage.remove_unfinished(run);
    }
    const auto steps = other ? steps_of(*other->format, run) : std::nullopt;
    if (steps && !steps->empty()) {
      throw Error(
          run.string() + " holds checkpoints of the format " + other->name +
              ", which gc does not know",
          "its plugin removes old ones: checkpoint.keep of a recipe says how many stay",
          exit_code::data
      );
    }
    const std::string apart = checkpoints_apart(run);
    throw Error(
        run.string() + " holds no checkpoints",
        apart.empty() ? "give the folder that megahost run named"
                      : "those of this run are in " + apart,
        exit_code::data
    );
  }
  std::printf(
      "%s: %zu %s, %s\n",
      run.c_str(),
      count,
      is_dry ? "to remove" : "removed",
      bytes_text(static_cast<int64_t>(bytes)).c_str()
  );
  return 0;
}

} // namespace mh
