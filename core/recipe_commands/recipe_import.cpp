#include "core/base/text.hpp"
#include "core/import/manifest.hpp"
#include "core/install/program.hpp"
#include "core/kernels/processor.hpp"
#include "core/language/source.hpp"
#include "core/recipe/paths.hpp"
#include "core/recipe_commands/commands.hpp"
#include "core/settings/settings.hpp"
#include "core/storage/file_system.hpp"
#include "core/storage/temporary_folder.hpp"
#include "megahost/error.hpp"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>
#include <utility>
#include <vector>

namespace mh {

namespace {

std::optional<std::string> from_environment(const std::string& name) {
  const char* value = std::getenv(name.c_str());
  return value == nullptr ? std::nullopt : std::optional<std::string>(value);
}

/// The programs that scripts start trainings with, or containers in which they do. Under --run each
/// is a script that notes its arguments.
constexpr const char* kNoted[] = {
    "python",
    "python3",
    "torchrun",
    "srun",
    "sbatch",
    "mpirun",
    "mpiexec",
    "deepspeed",
    "docker",
    "podman",
    "apptainer",
    "singularity",
    "enroot",
    "nsys",
    "ncu",
    "pip",
    "pip3",
    "nvidia-smi"};

constexpr const char* kNoting =
    "#!/bin/sh\n"
    "{ printf '%s\\0' \"$(($# + 1))\" \"${0##*/}\" \"$@\"; } >> \"$MEGAHOST_NOTED\"\n";

/// A batch script is looked into: it is run in the same way.
constexpr const char* kFollowing =
    "while [ $# -gt 0 ]; do [ -f \"$1\" ] && exec bash \"$@\"; shift; done\nexec bash\n";

constexpr double kLongest = 60; // seconds

/// Commands that were noted: each the number of its words, and the words.
std::vector<std::vector<std::string>> noted_commands(const std::filesystem::path& file) {
  std::vector<std::vector<std::string>> commands;
  std::ifstream stream(file, std::ios::binary);
  for (std::string count; std::getline(stream, count, '\0');) {
    std::vector<std::string>& words = commands.emplace_back();
    for (int64_t left = std::atoll(count.c_str()); left > 0; --left) {
      std::getline(stream, words.emplace_back(), '\0');
    }
  }
  return commands;
}

/// Runs a script under bash, with programs that only note their words in place of launchers.
ShellCommand command_of_run(const std::string& script, const std::vector<std::string>& words) {
  namespace fs = std::filesystem;
  const TemporaryFolder temporary("megahost-import");
  const fs::path& folder = temporary.path();
  const fs::path noted = folder / "noted", log = folder / "log";
  fs::create_directory(folder / "bin");
  for (const char* name : kNoted) {
    const bool batch = std::string_view(name) == "sbatch";
    replace_file(folder / "bin" / name, std::string(kNoting) + (batch ? kFollowing : ""));
    fs::permissions(folder / "bin" / name, fs::perms::owner_all);
  }
  replace_file(noted, "");
  const char* path = std::getenv("PATH");
  std::vector<std::string> command{"bash", script};
  command.insert(command.end(), words.begin(), words.end());
  const int status = run_program(
      command,
      {.log = log,
       .variables =
           {{"PATH", (folder / "bin").string() + ":" + (path == nullptr ? "" : path)},
            {"MEGAHOST_NOTED", noted}},
       .limit = kLongest}
  );
  for (const auto& one : noted_commands(noted)) {
    if (auto found = training_command(one, script, from_environment)) {
      return std::move(*found);
    }
  }
  const std::string said = last_lines(log, 5);
  throw Error(
      script + " was run and came to no command that runs a pretrain_gpt.py (status " +
          std::to_string(status) + ")" + (said.empty() ? "" : "; it said\n" + said),
      "give what it wants: words behind its name, variables in the environment"
  );
}

/// -o chooses the language by its end.
RecipeFormat written_format(const Invocation& invocation) {
  const std::string file = invocation.value("-o");
  return file.empty() ? RecipeFormat::toml : recipe_format_of(file);
}

} // namespace

std::string write_imported(
    const Invocation& invocation, Host& host, ImportedRecipe imported, const std::string& from
) {
  const Loaded loaded{from, {{"recipe", imported.tree}}, imported.tree, {}};
  // It trains elsewhere, on as many ranks as are not known here.
  const Facts facts{.bf16 = this_processor().bf16(), .world = 1, .trains = false};
  const Resolved resolved = resolve_loaded(loaded, host, facts);
  for (const auto& [name, schema] : resolved.schemas) {
    Value* part = name.empty() ? &imported.tree : imported.tree.as_table().find(name);
    if (part != nullptr) {
      make_paths_absolute(schema, part->as_table());
    }
  }
  const std::string text = imported.text(
      "From " + from + ", by megahost " + invocation.command + ".", written_format(invocation)
  );
  std::string file = invocation.value("-o");
  if (file.empty()) {
    std::fputs(text.c_str(), stdout);
  } else {
    if (!invocation.has("--force") && file_system().kind(file) != FileSystem::Kind::none) {
      throw Error(file + " is there already", "choose another -o, or replace it with --force");
    }
    replace_file(file, text);
  }
  return file;
}

namespace {

/// The recipe of a command, or of a script that holds one.
///
/// Returns: the name of what it comes from
std::string import_command(
    const Invocation& invocation, std::string given, bool script, ImportedRecipe& ret_recipe
) {
  std::vector<std::string> words(invocation.arguments.begin() + 1, invocation.arguments.end());
  const auto is_program = [](const std::string& word) { return word.ends_with(".py"); };
  const bool is_bare = given.find_first_of(" \n") == std::string::npos;
  if (!script && is_bare && (is_program(given) || std::ranges::any_of(words, is_program))) {
    // A command without quotes.
    for (const std::string& word : std::exchange(words, {})) {
      given += " " + shell_word(word);
    }
  }
  if (!script && (given.find_first_of(" \n=") == std::string::npos || invocation.has("--run"))) {
    throw Error(
        "there is no script " + given,
        "give a file, or the command in quotes: 'pretrain_gpt.py --num-layers 2 ...'"
    );
  }
  const std::string name = script ? given : "the command";
  const ShellCommand command =
      invocation.has("--run")
          ? command_of_run(given, words)
          : find_training_command(
                !script              ? given
                : is_manifest(given) ? script_of_manifest(read_source(given, "manifest")->text)
                                     : read_source(given, "script")->text,
                name,
                from_environment,
                words
            );
  ret_recipe = import_arguments(command);
  return name;
}

/// Makes a recipe of a settings file of another trainer.
void import_settings_file(
    const Invocation& invocation, const SourcePtr& source, ImportedRecipe& ret_recipe
) {
  if (invocation.arguments.size() > 1 || invocation.has("--run")) {
    throw Error(
        source->name + " is a settings file: " +
            (invocation.has("--run") ? "there is nothing to run"
                                     : invocation.arguments[1] + " behind it says nothing"),
        "give the file alone; megahost run --set changes the recipe's values"
    );
  }
  ret_recipe = import_settings(read_settings(source), source->name);
}

} // namespace

int command_recipe_import_args(const Invocation& invocation, Host& host) {
  const std::string given = invocation.arguments.front();
  std::error_code ignored;
  const bool is_file = std::filesystem::is_regular_file(given, ignored);
  const SourcePtr source = is_file ? read_source(given, "settings") : nullptr;
  ImportedRecipe imported;
  std::string name = given;
  const bool settings = source != nullptr && is_settings(given, source->text);
  if (settings) {
    import_settings_file(invocation, source, imported);
  } else {
    name = import_command(invocation, given, is_file, imported);
  }
  const std::string file = write_imported(invocation, host, imported, name);
  if (!file.empty()) {
    std::printf(
        "%s is a recipe; megahost run %s --scale tries it here\n",
        file.c_str(),
        shell_word(file).c_str()
    );
  }
  if (!imported.comments.empty()) {
    const size_t count = imported.comments.size();
    std::fflush(stdout);
    const bool inside = written_format(invocation) != RecipeFormat::json;
    std::fprintf(
        stderr,
        "note: %s no equivalent: %s\n",
        settings     ? "some settings have another meaning, or"
        : count == 1 ? "1 argument has"
                     : (std::to_string(count) + " arguments have").c_str(),
        inside ? "see the comments at the top of the recipe" : join(imported.comments, "; ").c_str()
    );
  }
  return 0;
}

} // namespace mh
