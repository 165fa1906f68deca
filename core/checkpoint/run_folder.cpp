#include "core/checkpoint/run_folder.hpp"

#include "core/checkpoint/detect_format.hpp"
#include "core/recipe/paths.hpp"
#include "core/storage/file_system.hpp"
#include "megahost/error.hpp"

#include <algorithm>
#include <functional>
#include <system_error>
#include <utility>

namespace mh {
namespace fs = std::filesystem;

namespace {

constexpr const char* kRecipeFile = "recipe.toml";

fs::path plain_folder(const fs::path& folder) {
  return folder.has_filename() ? folder : folder.parent_path();
}

fs::path numbered(const fs::path& folder, int number) {
  return number == 1 ? folder : fs::path(folder.string() + "-" + std::to_string(number));
}

bool holds_run(const fs::path& folder) {
  std::error_code ignored;
  return fs::exists(folder / kRecipeFile, ignored);
}

/// Whether it is the folder or one that is numbered after it.
bool is_numbered(const fs::path& folder, const fs::path& plain) {
  const std::string name = folder.filename(), first = plain.filename();
  return name == first ||
         (name.starts_with(first + "-") && name.size() > first.size() + 1 &&
          name.find_first_not_of("0123456789", first.size() + 1) == std::string::npos);
}

/// The folder and those that are numbered after it, of those that hold a run: the last one that was
/// started first.
std::vector<fs::path> newest(const fs::path& plain) {
  std::vector<std::pair<fs::file_time_type, fs::path>> found;
  std::error_code ignored;
  const fs::path parent = plain.has_parent_path() ? plain.parent_path() : ".";
  for (const auto& entry : fs::directory_iterator(parent, ignored)) {
    const fs::path folder = plain.parent_path() / entry.path().filename();
    if (is_numbered(folder, plain) && holds_run(folder)) {
      const auto started = fs::last_write_time(folder / kRecipeFile, ignored);
      found.emplace_back(started, folder);
    }
  }
  std::ranges::sort(found, std::greater<>());
  std::vector<fs::path> folders;
  for (const auto& [started, folder] : found) {
    folders.push_back(folder);
  }
  return folders;
}

} // namespace

fs::path run_folder(const fs::path& wanted, bool resume, bool named) {
  const fs::path plain = plain_folder(wanted);
  if (resume) {
    const auto runs = newest(plain);
    return named || runs.empty() ? plain : runs.front();
  }
  int free = 1;
  while (holds_run(numbered(plain, free))) {
    ++free;
  }
  return numbered(plain, free);
}

Path checkpoint_folder(const Recipe& recipe, const fs::path& taken) {
  return checkpoints_of({recipe.checkpoint.dir, recipe.run_dir}, taken);
}

void require_no_checkpoint(
    const Recipe& recipe, const CheckpointFormat& format, const fs::path& taken
) {
  const Path folder = checkpoint_folder(recipe, taken);
  const auto steps = recipe.run_dir ? steps_of(format, folder) : std::nullopt;
  if (steps && !steps->empty()) {
    throw Error(
        "checkpoint.dir " + folder.string() + " holds the checkpoints of another run",
        "name another place, or go on with --resume",
        exit_code::data
    );
  }
}

std::string
other_checkpoint(const Recipe& recipe, const CheckpointFormat& format, const fs::path& taken) {
  const fs::path plain = plain_folder(recipe.run_folder());
  for (const fs::path& folder : newest(plain)) {
    if (folder != taken) {
      const Path saves = checkpoint_folder(recipe, folder);
      const auto steps = steps_of(format, saves);
      if (steps && !steps->empty()) {
        return folder.string() + " has one of step " + std::to_string(steps->front()) +
               ": --resume --run-dir " + folder.string() + " goes on with it";
      }
    }
  }
  return "";
}

std::string
moved_run(const Recipe& recipe, const CheckpointFormat& format, const fs::path& recipe_file) {
  const fs::path folder = recipe_file.parent_path();
  if (recipe_file.filename() != kRecipeFile || folder.empty()) {
    return "";
  }
  const auto steps = steps_of(format, checkpoint_folder(recipe, folder));
  return !steps || steps->empty() ? ""
                                  : "the run of this recipe was moved here: --resume --run-dir " +
                                        folder.string() + " goes on with it";
}

std::vector<std::string>
folder_notes(const fs::path& wanted, const fs::path& taken, bool resume, bool named) {
  const fs::path plain = plain_folder(wanted);
  if (taken == plain) {
    return {};
  }
  if (resume) {
    return {
        "this run goes on in " + taken.string() + ", the last that was started of those that " +
        plain.string() + " was given for; --run-dir names another"};
  }
  return {
      plain.string() + " holds an earlier run: this one is kept in " + taken.string() +
      (named ? "; --resume --run-dir " + taken.string() + " goes on with it"
             : ", and --resume takes the last that was started; --run-dir names another")};
}

fs::path run_lock(const fs::path& folder) {
  return folder / ".lock";
}

std::unique_ptr<FileLock> take_run_folder(const fs::path& folder) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) {
    throw Error(
        "cannot make the run folder " + folder.string() + ": " + error.message(),
        "choose another checkpoint.dir or run_dir, or make the place writable",
        exit_code::data
    );
  }
  return std::make_unique<FileLock>(run_lock(folder));
}

void write_run_recipe(const fs::path& folder, const std::string& recipe_text) {
  replace_file(folder / kRecipeFile, recipe_text);
}

} // namespace mh
