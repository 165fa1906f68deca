#include "core/base/text.hpp"
#include "core/commands/commands.hpp"
#include "core/kernels/processor.hpp"
#include "core/language/source.hpp"
#include "core/recipe/paths.hpp"
#include "core/storage/file_system.hpp"
#include "megahost/error.hpp"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <optional>

namespace mh {

namespace {

std::optional<std::string> from_environment(const std::string& name) {
  const char* value = std::getenv(name.c_str());
  return value == nullptr ? std::nullopt : std::optional<std::string>(value);
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
  const Resolved resolved =
      resolve_loaded(loaded, host, {.bf16 = this_processor().bf16(), .world = 1});
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

int command_recipe_import_args(const Invocation& invocation, Host& host) {
  const std::string& given = invocation.arguments.front();
  std::error_code ignored;
  const bool script = std::filesystem::is_regular_file(given, ignored);
  if (!script && given.find_first_of(" \n=") == std::string::npos) {
    throw Error(
        "there is no script " + given,
        "give a file, or the command in quotes: 'pretrain_gpt.py --num-layers 2 ...'"
    );
  }
  const std::string name = script ? given : "the command";
  const ShellCommand command = find_training_command(
      script ? read_source(given, "script")->text : given, name, from_environment
  );
  const ImportedRecipe imported = import_arguments(command);
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
        "note: %zu argument%s no equivalent: %s\n",
        count,
        count == 1 ? " has" : "s have",
        inside ? "see the comments at the top of the recipe" : join(imported.comments, "; ").c_str()
    );
  }
  return 0;
}

} // namespace mh
