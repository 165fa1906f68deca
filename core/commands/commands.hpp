#pragma once
/// The commands that need plugins or LibTorch, one file each.

#include "core/cli/invocation.hpp"
#include "core/import/import.hpp"
#include "core/options/read.hpp"
#include "core/recipe/commands.hpp"

#include <string>

namespace mh {

int command_run(const Invocation& invocation, Host& host);
int command_eval(const Invocation& invocation, Host& host);
int command_generate(const Invocation& invocation, Host& host);
int command_fill_mask(const Invocation& invocation, Host& host);
int command_embed(const Invocation& invocation, Host& host);
int command_sweep(const Invocation& invocation, Host& host);
int command_plot(const Invocation& invocation, Host& host);
int command_compare(const Invocation& invocation, Host& host);
int command_status(const Invocation& invocation, Host& host);
int command_watch(const Invocation& invocation, Host& host);
int command_check(const Invocation& invocation, Host& host);
int command_mesh(const Invocation& invocation, Host& host);
int command_plan(const Invocation& invocation, Host& host);
int command_program(const Invocation& invocation, Host& host);
int command_launch(const Invocation& invocation, Host& host);
int command_schedule(const Invocation& invocation, Host& host);
int command_recipe_check(const Invocation& invocation, Host& host);
int command_recipe_show(const Invocation& invocation, Host& host);
int command_recipe_explain(const Invocation& invocation, Host& host);
int command_recipe_diff(const Invocation& invocation, Host& host);
int command_recipe_import_args(const Invocation& invocation, Host& host);
int command_recipe_from_hf(const Invocation& invocation, Host& host);
int command_presets(const Invocation& invocation, Host& host);
int command_presets_show(const Invocation& invocation, Host& host);
int command_tokenizer_encode(const Invocation& invocation, Host& host);
int command_tokenizer_decode(const Invocation& invocation, Host& host);
int command_tokenizer_inspect(const Invocation& invocation, Host& host);
int command_recipe_schema(const Invocation& invocation, Host& host);
int command_recipe_stubs(const Invocation& invocation, Host& host);
int command_help(const Invocation& invocation, Host& host);
int command_doctor(const Invocation& invocation, Host& host);
int command_docs(const Invocation& invocation, Host& host);

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
