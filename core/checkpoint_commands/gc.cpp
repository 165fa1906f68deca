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
  enum class Kind : uint8_t {
    folder,
    file,
    upload
  } kind = Kind::folder;        ///< a step's folder, a file in one
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
      ret_garbage.push_back(
          {path, "no manifest names it", storage.get(path)->size(), Garbage::Kind::file}
      );
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

/// The rests of killed processes' uploads below a prefix, which `list` does not show.
std::vector<Garbage> uploads_of(Storage& storage, const Path& prefix) {
  std::vector<Garbage> uploads;
  for (const Storage::Unfinished& rest : storage.unfinished(prefix)) {
    uploads.push_back(
        {prefix / rest.name, "its upload never finished", rest.bytes, Garbage::Kind::upload}
    );
  }
  return uploads;
}

/// Removes, or with `is_dry` only says, and counts.
class Removal {
public:
  Removal(Storage& storage, bool is_dry)
      : storage_(storage)
      , is_dry_(is_dry) {}

  void remove(const Garbage& one, StepFolder& steps, const std::string& manifest) {
    if (!is_dry_ && one.old && !steps.remove(*one.old)) {
      warn(one.path.string() + " stays: another process reads it");
      return;
    }
    if (!is_dry_ && one.kind == Garbage::Kind::folder) {
      storage_.remove(one.path / manifest); // first: it does not count from now on
      storage_.remove_all(one.path);
    } else if (!is_dry_ && one.kind == Garbage::Kind::file) {
      storage_.remove(one.path);
    }
    say(one);
  }

  /// A storage that cannot tell them removes them, too.
  void remove_uploads(const Path& prefix, const std::vector<Garbage>& uploads) {
    if (!is_dry_) {
      storage_.remove_unfinished(prefix);
    }
    for (const Garbage& one : uploads) {
      say(one);
      ++uploads_;
    }
  }

  void say_all(const std::string& run) const {
    std::string line = run + ": " + std::to_string(count_) +
                       (is_dry_ ? " to remove, " : " removed, ") +
                       bytes_text(static_cast<int64_t>(bytes_));
    if (uploads_ > 0) {
      line += ", unfinished uploads among them: " + std::to_string(uploads_);
    }
    std::puts(line.c_str());
  }

private:
  void say(const Garbage& one) {
    bytes_ += one.bytes;
    ++count_;
    std::printf(
        "%s %s, %s: %s\n",
        is_dry_ ? "would remove" : "removed",
        one.path.c_str(),
        bytes_text(static_cast<int64_t>(one.bytes)).c_str(),
        one.why.c_str()
    );
  }

  Storage& storage_;
  bool is_dry_;
  uint64_t bytes_ = 0;
  size_t count_ = 0, uploads_ = 0;
};

[[noreturn]] void refuse_without_checkpoints(const Path& run, Host& host) {
  const auto other = find_format(run, host);
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
  Removal removal(storage, invocation.has("--dry-run"));
  bool is_empty = true;
  for (const Kind& kind : kinds) {
    const auto uploads = uploads_of(storage, kind.root); // a folder takes those in it with it
    const bool has_steps = !storage.list(kind.root).empty();
    is_empty = is_empty && !has_steps && uploads.empty();
    if (has_steps) {
      StepFolder steps(storage, kind.root, kind.manifest, warn);
      const auto old = old_checkpoints(kind.format, run, retention, warn);
      for (const Garbage& one : garbage_of(storage, steps, old, kind.manifest)) {
        removal.remove(one, steps, kind.manifest);
      }
    }
    removal.remove_uploads(kind.root, uploads);
  }
  const auto items = storage.list(run);
  if (is_empty && scheme_of(run.native()) &&
      std::ranges::none_of(items, &Storage::Item::is_prefix)) {
    const auto uploads = uploads_of(storage, run); // an export's, whose command was killed
    removal.remove_uploads(run, uploads);
    is_empty = uploads.empty();
  }
  if (is_empty) {
    refuse_without_checkpoints(run, host);
  }
  removal.say_all(run);
  return 0;
}

} // namespace mh
