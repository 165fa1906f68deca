#include "core/storage/step_folder.hpp"

#include <algorithm>
#include <charconv>
#include <random>

namespace mh {

namespace {

constexpr std::string_view kPrefix = "step-";
constexpr size_t kDigits = 12;
constexpr const char* kLatest = "LATEST";

std::string step_name(int64_t step) {
  std::string digits = std::to_string(step);
  digits.insert(0, kDigits - std::min(kDigits, digits.size()), '0');
  return std::string(kPrefix) + digits;
}

struct StepName {
  int64_t step;
  std::string_view suffix; // "", ".tmp-ID", ".old-ID", ".trash-ID"
};

std::optional<StepName> parse_name(std::string_view name) {
  const size_t dot = std::min(name.find('.'), name.size());
  if (!name.starts_with(kPrefix) || dot < kPrefix.size() + kDigits) {
    return std::nullopt;
  }
  const std::string_view digits = name.substr(kPrefix.size(), dot - kPrefix.size());
  int64_t step = 0;
  const auto [end, error] = std::from_chars(digits.begin(), digits.end(), step);
  if (error != std::errc() || end != digits.end() || step_name(step) != name.substr(0, dot)) {
    return std::nullopt;
  }
  return StepName{step, name.substr(dot)};
}

} // namespace

StepFolder::StepFolder(Storage& storage, Path root, Warn warn, std::string id)
    : storage_(storage)
    , root_(std::move(root))
    , warn_(std::move(warn))
    , id_(std::move(id)) {}

std::string StepFolder::random_id() {
  std::random_device device;
  std::string id;
  for (int i = 0; i < 12; ++i) {
    id += "0123456789abcdefghijklmnopqrstuv"[device() % 32];
  }
  return id;
}

Path StepFolder::path(int64_t step) const {
  return root_ / step_name(step);
}

Path StepFolder::aside(int64_t step) const {
  return root_ / (step_name(step) + ".tmp-" + id_);
}

std::vector<int64_t> StepFolder::steps() const {
  std::vector<int64_t> steps;
  if (storage_.kind(root_) == Storage::Kind::none) {
    return steps;
  }
  for (const std::string& name : storage_.list(root_)) {
    if (const auto parsed = parse_name(name); parsed && parsed->suffix.empty()) {
      steps.push_back(parsed->step);
    }
  }
  std::sort(steps.rbegin(), steps.rend());
  return steps;
}

std::optional<int64_t> StepFolder::newest(const Verify& verify) const {
  return newest(steps(), verify);
}

std::optional<int64_t>
StepFolder::newest(const std::vector<int64_t>& all, const Verify& verify) const {
  for (size_t i = 0; i < all.size(); ++i) {
    try {
      verify(path(all[i]));
      return all[i];
    } catch (const Error& error) {
      const std::string damaged =
          "the checkpoint of step " + std::to_string(all[i]) + " is damaged (" + error.what() + ")";
      if (i + 1 == all.size()) {
        throw Error(
            root_.string() + ": no checkpoint can be used; " + damaged,
            "restore the folder from a copy, or start again in another folder",
            exit_code::data
        );
      }
      warn_(damaged + "; trying the one of step " + std::to_string(all[i + 1]));
    }
  }
  return std::nullopt;
}

void StepFolder::recover() {
  make_directories(storage_, root_);
  for (const std::string& name : storage_.list(root_)) {
    const auto parsed = parse_name(name);
    if (!parsed || parsed->suffix.empty()) {
      continue;
    }
    const bool replaced = parsed->suffix.starts_with(".old-");
    if (replaced && storage_.kind(path(parsed->step)) == Storage::Kind::none) {
      storage_.rename(root_ / name, path(parsed->step)); // the new one never took its place
      storage_.sync_directory(root_);
    } else if (replaced) {
      discard(parsed->step, root_ / name);
    } else if (parsed->suffix.starts_with(".trash-")) {
      remove_tree(storage_, root_ / name);
    } else if (parsed->suffix.starts_with(".tmp-")) {
      warn_(
          "removing " + (root_ / name).string() + ", which was not complete when its process ended"
      );
      remove_tree(storage_, root_ / name);
    }
  }
}

Path StepFolder::begin(int64_t step) {
  const Path directory = aside(step);
  storage_.make_directory(directory);
  return directory;
}

void StepFolder::commit(int64_t step) {
  const Path target = path(step);
  const Path replaced = target.string() + ".old-" + id_;
  storage_.sync_directory(aside(step));
  const bool replaces = storage_.kind(target) != Storage::Kind::none;
  if (replaces) {
    storage_.rename(target, replaced);
  }
  try {
    if (replaces) {
      storage_.sync_directory(root_);
    }
    storage_.rename(aside(step), target);
  } catch (const Error&) {
    if (replaces) {
      storage_.rename(replaced, target);
    }
    throw;
  }
  storage_.sync_directory(root_);
  try {
    replace_file(storage_, root_ / kLatest, step_name(step) + "\n");
    if (replaces) {
      discard(step, replaced);
    }
  } catch (const Error& error) {
    warn_(std::string("the checkpoint is saved, but ") + error.what());
  }
}

void StepFolder::abandon(int64_t step) noexcept {
  try {
    if (storage_.kind(aside(step)) != Storage::Kind::none) {
      remove_tree(storage_, aside(step));
    }
  } catch (const std::exception& error) {
    warn_(std::string("an incomplete checkpoint is left behind: ") + error.what());
  }
}

void StepFolder::discard(int64_t step, const Path& directory) {
  // Under a name that counts, a directory must never be there in part.
  const Path trash = path(step).string() + ".trash-" + id_;
  storage_.rename(directory, trash);
  storage_.sync_directory(root_);
  remove_tree(storage_, trash);
}

void StepFolder::keep_last(int64_t count, const Verify& verify) {
  MH_ASSERT(count >= 1, "retention keeps at least one checkpoint");
  try {
    const std::vector<int64_t> all = steps();
    if (all.size() <= static_cast<size_t>(count)) {
      return;
    }
    const std::optional<int64_t> whole = newest(verify);
    for (const int64_t step : std::span(all).subspan(static_cast<size_t>(count))) {
      if (step != whole) {
        discard(step, path(step));
      }
    }
  } catch (const Error& error) {
    warn_(std::string("old checkpoints are not removed: ") + error.what());
  }
}

} // namespace mh
