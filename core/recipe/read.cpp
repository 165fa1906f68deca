#include "core/recipe/read.hpp"

#include "megahost/error.hpp"

namespace mh {

Document read_recipe(
    const std::filesystem::path& file, const std::string& layer, const ReadOptions& options
) {
  refuse_folder(file);
  const std::string extension = file.extension().string();
  if (extension != ".lua" && extension != ".toml" && extension != ".json") {
    throw Error(
        file.string() + " ends in \"" + extension + "\", expected a recipe: .lua, .toml or .json"
    );
  }
  const SourcePtr source = read_source(file, layer);
  if (extension == ".lua") {
    return read_lua(source, options);
  }
  return {extension == ".toml" ? read_toml(source) : read_json(source), {source->name}};
}

Value evaluate(const std::filesystem::path& file, const ReadOptions& options) {
  return read_recipe(file, "recipe", options).tree;
}

} // namespace mh
