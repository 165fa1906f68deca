#include "core/recipe_commands/commands.hpp"
#include "core/session/session.hpp"

#include <cstdio>

namespace mh {

namespace {

/// Prints text with exactly one end of line behind it.
void print(std::string text) {
  while (text.ends_with('\n')) {
    text.pop_back();
  }
  std::puts(text.c_str());
}

} // namespace

int command_recipe_check(const Invocation& invocation, Host& host) {
  const Read read = read_resolved(invocation, host, invocation.arguments[0]);
  // No schema says what this refuses.
  static_cast<void>(make_optimizer(read.resolved.recipe.optimizer, host));
  print(check_recipe(read.loaded, read.resolved));
  return 0;
}

int command_recipe_show(const Invocation& invocation, Host& host) {
  const RecipeFormat format = recipe_format(invocation.value("--format", "toml"));
  const Read read = read_resolved(invocation, host, invocation.arguments[0]);
  print(show_recipe(read.resolved.recipe, format, invocation.has("--origins")));
  return 0;
}

int command_recipe_explain(const Invocation& invocation, Host& host) {
  const Read read = read_resolved(invocation, host, invocation.arguments[0]);
  std::string text;
  for (size_t i = 1; i < invocation.arguments.size(); ++i) {
    text +=
        (i > 1 ? "\n" : "") + explain_recipe(read.loaded, read.resolved, invocation.arguments[i]);
  }
  print(text);
  return 0;
}

int command_recipe_diff(const Invocation& invocation, Host& host) {
  const Read left = read_resolved(invocation, host, invocation.arguments[0]);
  const Read right = read_resolved(invocation, host, invocation.arguments[1]);
  const std::string difference = diff_recipes(left.resolved.recipe, right.resolved.recipe);
  print(
      difference.empty()
          ? invocation.arguments[0] + " and " + invocation.arguments[1] + " resolve to the same"
          : difference
  );
  return 0;
}

} // namespace mh
