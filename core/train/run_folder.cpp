#include "core/train/run_folder.hpp"

#include "core/model/plugin_call.hpp"
#include "megahost/error.hpp"

#include <fstream>
#include <system_error>

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

} // namespace

fs::path run_folder(const fs::path& wanted, bool resume) {
  const fs::path plain = plain_folder(wanted);
  int next = 1;
  while (holds_run(numbered(plain, next))) {
    ++next;
  }
  return numbered(plain, resume && next > 1 ? next - 1 : next);
}

Path checkpoint_folder(const Recipe& recipe, const fs::path& taken) {
  if (!recipe.run_dir) {
    return taken;
  }
  const std::string number =
      taken.string().substr(plain_folder(recipe.run_folder()).string().size());
  return plain_folder(recipe.checkpoint.dir).string() + number;
}

void require_no_checkpoint(
    const Recipe& recipe, const CheckpointFormat& format, const fs::path& taken
) {
  const Path folder = checkpoint_folder(recipe, taken);
  const auto steps = recipe.run_dir
                         ? in_plugin(format, "steps", [&] { return format.steps(folder); })
                         : std::nullopt;
  if (steps && !steps->empty()) {
    throw Error(
        "checkpoint.dir " + folder.string() + " holds the checkpoints of another run",
        "name another place, or go on with --resume",
        exit_code::data
    );
  }
}

std::vector<std::string> folder_notes(const fs::path& wanted, const fs::path& taken, bool resume) {
  const fs::path plain = plain_folder(wanted);
  if (taken == plain) {
    return {};
  }
  if (resume) {
    return {
        "this run goes on in " + taken.string() + ", the newest of those that " + plain.string() +
        " was given for"};
  }
  return {
      plain.string() + " holds an earlier run: this one is kept in " + taken.string() +
      ", and --resume takes the newest; --run-dir names another"};
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
  const auto file = folder / kRecipeFile;
  std::ofstream stream(file);
  stream << recipe_text;
  stream.flush();
  if (!stream) {
    throw Error(
        "cannot write " + file.string(),
        "choose another checkpoint.dir or run_dir, make the place writable or free disk space",
        exit_code::data
    );
  }
}

} // namespace mh
