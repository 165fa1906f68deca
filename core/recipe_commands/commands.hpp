#pragma once
/// `megahost recipe ...` and `megahost presets ...`: what recipes say, and those made of other programs' settings.

#include "core/cli/invocation.hpp"
#include "core/import/import.hpp"
#include "core/options/read.hpp"
#include "core/recipe/commands.hpp"

#include <string>

namespace mh {

int command_recipe_check(const Invocation& invocation, Host& host);
int command_recipe_show(const Invocation& invocation, Host& host);
int command_recipe_explain(const Invocation& invocation, Host& host);
int command_recipe_diff(const Invocation& invocation, Host& host);
int command_recipe_import_args(const Invocation& invocation, Host& host);
int command_recipe_from_hf(const Invocation& invocation, Host& host);
int command_presets(const Invocation& invocation, Host& host);
int command_presets_show(const Invocation& invocation, Host& host);
int command_recipe_schema(const Invocation& invocation, Host& host);
int command_recipe_stubs(const Invocation& invocation, Host& host);

/// Ends a command that makes a recipe of what another program says in `from`: refuses what no
/// recipe may say, makes relative paths absolute, as the recipe may lie anywhere, and writes it to
/// the file of -o, or prints it.
///
/// Returns: the file of -o; empty if the recipe was printed
/// Throws:  mh::Error, RecipeError
std::string write_imported(
    const Invocation& invocation, Host& host, ImportedRecipe imported, const std::string& from
);

} // namespace mh
