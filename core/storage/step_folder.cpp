#include "core/storage/step_folder.hpp"

#include "core/base/text.hpp"
#include "core/formats/manifest.hpp"

#include <algorithm>
#include <charconv>
#include <tuple>

namespace mh {

namespace {

constexpr std::string_view kPrefix = "step-";
constexpr size_t kDigits = 12;
constexpr const char* kLatest = "LATEST";

std::string folder_name(int64_t step, int64_t number) {
  std::string digits = std::to_string(step);
  digits.insert(0, kDigits - std::min(kDigits, digits.size()), '0');
  return std::string(kPrefix) + digits + (number == 1 ? "" : "." + std::to_string(number));
}

std::optional<int64_t> number_of(std::string_view digits) {
  int64_t number = 0;
  const auto [end, error] = std::from_chars(digits.begin(), digits.end(), number);
  return error == std::errc() && end == digits.end() ? std::optional(number) : std::nullopt;
}

struct FolderName {
  int64_t step, number;
};

/// Only names that `folder_name` makes.
std::optional<FolderName> parse_name(std::string_view name) {
  if (!name.starts_with(kPrefix)) {
    return std::nullopt;
  }
  const size_t dot = std::min(name.find('.'), name.size());
  const auto step = number_of(name.substr(kPrefix.size(), dot - kPrefix.size()));
  const auto number = dot == name.size() ? 1 : number_of(name.substr(dot + 1));
  if (!step || !number || folder_name(*step, *number) != name) {
    return std::nullopt;
  }
  return FolderName{*step, *number};
}

} // namespace

StepFolder::StepFolder(Storage& storage, Path root, std::string manifest, Warn warn)
    : storage_(storage)
    , root_(std::move(root))
    , manifest_(std::move(manifest))
    , warn_(std::move(warn)) {}

std::vector<FoundStep> StepFolder::folders() const {
  std::vector<FoundStep> folders;
  for (const Storage::Item& item : storage_.list(root_)) {
    if (const auto parsed = item.is_prefix ? parse_name(item.name) : std::nullopt) {
      const bool committed = storage_.contains(root_ / item.name / manifest_);
      const StepUse use = committed ? StepUse::counts : StepUse::unfinished;
      folders.push_back({parsed->step, parsed->number, item.name, use});
    }
  }
  std::sort(folders.begin(), folders.end(), [](const FoundStep& a, const FoundStep& b) {
    return std::tie(a.step, a.number) > std::tie(b.step, b.number);
  });
  std::optional<int64_t> counts; // the step whose folder was seen
  for (FoundStep& folder : folders) {
    if (folder.use == StepUse::counts && counts == folder.step) {
      folder.use = StepUse::replaced;
    } else if (folder.use == StepUse::counts) {
      counts = folder.step;
    }
  }
  return folders;
}

Path StepFolder::path(int64_t step) const {
  for (const FoundStep& folder : folders()) {
    if (folder.step == step && folder.use == StepUse::counts) {
      return root_ / folder.name;
    }
  }
  return root_ / folder_name(step, 1);
}

std::vector<int64_t> StepFolder::steps() const {
  std::vector<int64_t> steps;
  for (const FoundStep& folder : folders()) {
    if (folder.use == StepUse::counts) {
      steps.push_back(folder.step);
    }
  }
  return steps;
}

std::optional<int64_t> StepFolder::newest(const Verify& verify) const {
  return newest_step(
      root_, steps(), [&](int64_t step) { verify(path(step)); }, warn_
  );
}

void require_commits(Storage& storage, const Path& root) {
  if (scheme_of(root.native())) { // a disk is asked when the run folder is made
    constexpr const char* kLong = "shard-00001-model-00001-of-00001.safetensors";
    (void)storage.put(root / folder_name(0, 10) / kLong, Storage::Existing::refuse);
  }
}

std::optional<int64_t> newest_step(
    const Path& root,
    const std::vector<int64_t>& steps,
    const std::function<void(int64_t step)>& verify,
    const StepFolder::Warn& warn
) {
  for (size_t i = 0; i < steps.size(); ++i) {
    try {
      verify(steps[i]);
      return steps[i];
    } catch (const NewerVersion&) {
      throw;
    } catch (const Error& error) {
      const std::string damaged = "the checkpoint of step " + std::to_string(steps[i]) +
                                  " is damaged (" + error.what() + ")";
      if (i + 1 == steps.size()) {
        throw Error(
            root.string() + ": no checkpoint can be used; " + damaged,
            "restore the folder from a copy, or start again in another folder",
            exit_code::data
        );
      }
      warn(damaged + "; trying the one of step " + std::to_string(steps[i + 1]));
    }
  }
  return std::nullopt;
}

void StepFolder::recover() {
  storage_.remove_unfinished(root_);
  for (const FoundStep& folder : folders()) {
    if (folder.use == StepUse::unfinished) {
      warn_(
          "removing " + (root_ / folder.name).string() +
          ", which is not complete: its process ended while it wrote or removed it"
      );
      storage_.remove_all(root_ / folder.name);
    } else if (folder.use == StepUse::replaced) {
      discard(folder.name);
    }
  }
}

Path StepFolder::begin(int64_t step) {
  int64_t number = 1;
  for (const FoundStep& folder : folders()) {
    if (folder.step == step) {
      number = folder.number + 1;
      break;
    }
  }
  begun_[step] = folder_name(step, number);
  return root_ / begun_[step];
}

void StepFolder::commit(int64_t step, std::string_view manifest) {
  const auto begun = begun_.find(step);
  MH_ASSERT(begun != begun_.end(), "a step is committed that was not begun");
  const std::string name = begun->second;
  put_text(storage_, root_ / name / manifest_, manifest, Storage::Existing::refuse);
  begun_.erase(begun);
  try {
    put_text(storage_, root_ / kLatest, name + "\n");
    for (const FoundStep& folder : folders()) {
      if (folder.step == step && folder.name != name && folder.use != StepUse::unfinished) {
        discard(folder.name);
      }
    }
  } catch (const Error& error) {
    warn_(std::string("the checkpoint is saved, but ") + error.what());
  }
}

void StepFolder::abandon(int64_t step) noexcept {
  const auto begun = begun_.find(step);
  if (begun == begun_.end()) {
    return;
  }
  try {
    storage_.remove(root_ / begun->second / manifest_); // where its last sync failed
    storage_.remove_all(root_ / begun->second);
    begun_.erase(begun);
  } catch (const std::exception& error) {
    warn_(std::string("an incomplete checkpoint is left behind: ") + error.what());
  }
}

void StepFolder::discard(const std::string& name) {
  storage_.remove(root_ / name / manifest_);
  storage_.remove_all(root_ / name);
}

namespace {

std::optional<HeldFile> held(const Path& manifest, HeldFile::As as, bool& ret_free) {
  try {
    auto file = HeldFile::take(manifest, as);
    std::error_code ignored;
    ret_free = file || !std::filesystem::exists(manifest, ignored);
    return file;
  } catch (const StorageError&) { // a disk without locks, or one that may only be read
    ret_free = true;
    return std::nullopt;
  }
}

} // namespace

std::optional<HeldFile> hold_step(const Path& directory, const std::string& manifest) {
  bool ignored = true;
  return held(directory / manifest, HeldFile::As::shared, ignored);
}

bool StepFolder::remove(int64_t step) {
  const Path directory = path(step);
  bool free = true;
  const auto alone = held(directory / manifest_, HeldFile::As::if_free, free);
  if (free) {
    discard(directory.filename());
  }
  return free;
}

} // namespace mh
