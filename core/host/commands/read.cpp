#include "core/host/commands/commands.hpp"
#include "core/host/folders.hpp"

namespace mh {

namespace {

Facts facts_of_this_machine() {
#if defined(__x86_64__)
  return {.bf16 = __builtin_cpu_supports("avx512bf16") != 0, .world = 1};
#else
  return {.bf16 = false, .world = 1};
#endif
}

Read read_layers(const LoadOptions& options, Host& host, const std::string& file) {
  Loaded loaded = load_recipe(file, options);
  for (const std::string& plugin : loaded.plugins()) {
    host.load(plugin);
  }
  const SchemaLookup lookup{
      .find = [&](Kind kind, const std::string& name) -> const Schema* {
        const Registry::Entry* entry = host.find(kind, name);
        return entry == nullptr ? nullptr : &entry->schema;
      },
      .names = [&](Kind kind) { return host.names(kind); },
  };
  Resolved resolved = resolve(loaded, lookup, options.facts);
  return {std::move(loaded), std::move(resolved)};
}

} // namespace

Read read_resolved(
    const Invocation& invocation, Host& host, const std::string& file, std::vector<Layer> layers
) {
  LoadOptions options;
  options.roots = recipe_folders();
  options.sets = invocation.all("--set");
  options.facts = facts_of_this_machine();
  if (invocation.has("--scale")) {
    options.layers = {scale_recipe(read_layers(options, host, file).resolved.recipe.tree)};
  }
  options.layers.insert(options.layers.end(), layers.begin(), layers.end());
  return read_layers(options, host, file);
}

} // namespace mh
