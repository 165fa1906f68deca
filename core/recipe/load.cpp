#include "core/recipe/load.hpp"

#include "core/base/text.hpp"
#include "core/language/problem.hpp"
#include "core/recipe/paths.hpp"
#include "core/recipe/presets.hpp"
#include "core/schema/sections.hpp"

#include <algorithm>
#include <set>

namespace mh {

namespace {

namespace fs = std::filesystem;

/// The file that `name` means: from `folder`, then from the roots; the extension may be missing.
std::optional<fs::path>
find_recipe(const fs::path& name, const fs::path& folder, const std::vector<fs::path>& roots) {
  std::vector<fs::path> folders{folder};
  folders.insert(folders.end(), roots.begin(), roots.end());
  for (const fs::path& root : folders) {
    for (const char* extension : {"", ".lua", ".toml", ".json"}) {
      fs::path candidate = root / name;
      candidate += extension;
      std::error_code ignored;
      if (fs::is_regular_file(candidate, ignored)) {
        return candidate;
      }
    }
  }
  return std::nullopt;
}

[[noreturn]] void refuse(
    const Origin& at,
    const std::string& key,
    const std::string& message,
    const std::string& label = "",
    const std::string& note = ""
) {
  throw RecipeError({{at, key, message, label, note}});
}

/// Collects a recipe and the recipes it extends, the lowest first.
class Loader {
public:
  explicit Loader(const LoadOptions& options)
      : options_(options) {}

  /// `at`: where the file is extended.
  void add(const fs::path& file, const std::string& name, const Origin& at) {
    std::error_code ignored;
    const fs::path real = fs::weakly_canonical(file, ignored);
    if (std::find(open_.begin(), open_.end(), real) != open_.end()) {
      refuse(
          at,
          "extends",
          file.string() + " extends itself, directly or through the recipes it extends"
      );
    }
    open_.push_back(real);
    ParsedFile parsed = read_recipe(file, name, options_);
    files.insert(files.end(), parsed.files.begin(), parsed.files.end());
    if (const Value* extends = parsed.tree.find("extends")) {
      if (options_.of_run) {
        refuse(
            extends->origin,
            "extends",
            "the recipe of a run folder extends another: it would be read outside of the folder",
            "",
            "a run keeps its recipe whole; to mean it, give the file by --recipe"
        );
      }
      add_extended(*extends, file.parent_path());
      parsed.tree.as_table().erase("extends");
    }
    layers.push_back({name, std::move(parsed.tree)});
    open_.pop_back();
  }

  std::vector<Layer> layers;
  std::vector<std::string> files;

private:
  void add_extended(const Value& extends, const fs::path& folder) {
    const Value::Array names = extends.is_array() ? extends.as_array() : Value::Array{extends};
    for (const Value& name : names) {
      const Origin& at = name.origin.source ? name.origin : extends.origin;
      if (!name.is_string()) {
        refuse(
            at,
            "extends",
            "extends is " + to_text(extends) + ", expected a recipe's file name or a list of them"
        );
      }
      const auto file = find_recipe(name.as_string(), folder, options_.roots);
      if (!file) {
        refuse(
            at,
            "extends",
            "no recipe " + to_text(name) + " to extend",
            "",
            "looked in " + (folder.empty() ? "." : folder.string()) + " and in the recipe folders"
        );
      }
      add(*file, "extends " + name.as_string(), at);
    }
  }

  const LoadOptions& options_;
  std::vector<fs::path> open_;
};

} // namespace

Layer set_layer(const std::string& text, const std::string& option) {
  const size_t equals = text.find('=');
  if (equals == 0 || equals == std::string::npos) {
    throw Error(option + " " + text + " has no key or no value", "write --set optimizer.lr=1e-3");
  }
  const auto source = [&](std::string line) {
    return std::make_shared<const Source>(Source{option, std::move(line), option});
  };
  const std::string word = text.substr(equals + 1);
  const bool plain = !word.empty() && std::all_of(word.begin(), word.end(), [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) ||
           std::string_view("_-./:@+|*").find(c) != std::string_view::npos;
  });
  const SourcePtr original = source(text);
  check_text(original);
  try {
    return {option, read_toml(original)};
  } catch (const RecipeError&) {
    if (!plain) {
      throw;
    }
  }
  return {option, read_toml(source(text.substr(0, equals + 1) + string_text(word)))};
}

std::vector<std::string> Loaded::plugins() const {
  std::vector<std::string> files;
  const Value* plugins = merged.find("plugins");
  if (!plugins || !plugins->is_array()) {
    return files;
  }
  for (const Value& plugin : plugins->as_array()) {
    if (plugin.is_string()) {
      files.push_back(absolute_path(plugin).as_string());
    }
  }
  return files;
}

namespace {

[[noreturn]] void no_recipe(const fs::path& name, const std::vector<fs::path>& roots) {
  std::set<std::string> names;
  for (const fs::path& root : roots) {
    std::error_code ignored;
    for (const auto& entry : fs::directory_iterator(root, ignored)) {
      const std::string extension = entry.path().extension().string();
      if (extension == ".lua" || extension == ".toml") {
        names.insert(entry.path().filename().string());
      }
    }
  }
  const std::vector<std::string> known(names.begin(), names.end());
  const auto meant = nearest(name.filename().string(), known);
  throw Error(
      "there is no recipe " + name.string(),
      meant           ? "did you mean " + *meant + "?"
      : known.empty() ? "check the path"
                      : "check the path; the recipe folders hold " + join(known)
  );
}

} // namespace

RecipeFiles read_recipe_files(const fs::path& name, const LoadOptions& options) {
  const auto found = find_recipe(name, "", options.roots);
  if (!found && !fs::exists(name)) {
    no_recipe(name, options.roots);
  }
  const fs::path file = found.value_or(name);
  Loader loader(options);
  loader.add(file, "recipe", {});
  return {file.string(), std::move(loader.layers), std::move(loader.files), options.of_run};
}

Loaded merged(std::string file, std::vector<Layer> layers, const LoadOptions& options) {
  Loaded loaded{std::move(file), std::move(layers), Value(Table{}), {}};
  loaded.layers.insert(loaded.layers.end(), options.layers.begin(), options.layers.end());
  for (const std::string& text : options.sets) {
    loaded.layers.push_back(set_layer(text));
  }
  for (const std::string& text : options.layout) {
    loaded.layers.push_back(set_layer(text, "--layouts"));
  }
  for (const Layer& layer : loaded.layers) {
    loaded.merged = merge(loaded.merged, layer.tree);
  }
  return loaded;
}

Loaded load_recipe(const RecipeFiles& files, const LoadOptions& options) {
  Loaded loaded = merged(files.file, files.layers, options);
  loaded.files = files.files;
  loaded.of_run = files.of_run;
  lay_on_presets(loaded, options);
  return loaded;
}

Loaded load_recipe(const fs::path& file, const LoadOptions& options) {
  return load_recipe(read_recipe_files(file, options), options);
}

} // namespace mh
