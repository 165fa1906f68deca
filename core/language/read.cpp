#include "core/language/read.hpp"

#include "core/language/lua_sandbox.hpp"
#include "megahost/error.hpp"

namespace mh {

namespace {

/// The language of a recipe by its file name.
std::string extension_of(const std::filesystem::path& file) {
  refuse_folder(file);
  const std::string extension = file.extension().string();
  if (extension != ".lua" && extension != ".toml" && extension != ".json") {
    throw Error(
        file.string() + " ends in \"" + extension + "\", expected a recipe: .lua, .toml or .json"
    );
  }
  return extension;
}

} // namespace

ParsedFile read_recipe(
    const std::filesystem::path& file, const std::string& layer, const ReadOptions& options
) {
  const std::string extension = extension_of(file);
  const SourcePtr source = read_source(file, layer);
  if (extension == ".lua") {
    return read_lua(source, options);
  }
  return {extension == ".toml" ? read_toml(source) : read_json(source), {source->name}};
}

void check_syntax(const std::filesystem::path& file) {
  if (extension_of(file) == ".lua") {
    LuaSandbox({}).check(read_source(file, "recipe"));
  } else {
    (void)read_recipe(file, "recipe", {});
  }
}

Value evaluate(const std::filesystem::path& file, const ReadOptions& options) {
  return read_recipe(file, "recipe", options).tree;
}

} // namespace mh
