#pragma once
/// The commands that need plugins or LibTorch, one file each.

#include "core/host/invocation.hpp"
#include "core/recipe/commands.hpp"
#include "megahost/host.hpp"

#include <string>
#include <vector>

namespace mh {

int command_run(const Invocation& invocation, Host& host);
int command_eval(const Invocation& invocation, Host& host);
int command_recipe_check(const Invocation& invocation, Host& host);
int command_recipe_show(const Invocation& invocation, Host& host);
int command_recipe_explain(const Invocation& invocation, Host& host);
int command_recipe_diff(const Invocation& invocation, Host& host);
int command_plugins(const Invocation& invocation, Host& host);
int command_plugins_new(const Invocation& invocation, Host& host);
int command_plugins_show(const Invocation& invocation, Host& host);

/// A recipe and the layers that it was made of.
struct Read {
  Loaded loaded;
  Resolved resolved;
};

/// Reads a recipe: files, --scale if it was given, `layers`, --set, its plugins' schemas.
///
/// Throws:  mh::Error, RecipeError
[[nodiscard]] Read read_resolved(
    const Invocation& invocation,
    Host& host,
    const std::string& file,
    std::vector<Layer> layers = {}
);

} // namespace mh
