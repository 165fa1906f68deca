#pragma once
/// Recipe files to trees: syntax only, no schema. Each value knows its place.

#include "core/language/source.hpp"
#include "megahost/facts.hpp"
#include "megahost/value.hpp"

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace mh {

/// Tables and lists inside one another, at most.
inline constexpr int kDeepest = 64;

/// The time and memory that a Lua recipe may use.
struct LuaLimits {
  double seconds = 5;
  size_t bytes = size_t{64} << 20;
};

struct ReadOptions {
  std::vector<std::filesystem::path>
      roots{}; ///< folders in which recipes and modules are looked up
  LuaLimits lua{};
  Facts facts{};
};

/// A recipe file's tree, and every file that was read for it (Lua modules too).
struct ParsedFile {
  Value tree;
  std::vector<std::string> files;
};

/// Reads a .lua, .toml or .json file.
///
/// Throws:  mh::RecipeError with the place for bad syntax; mh::Error if the file cannot be read
[[nodiscard]] ParsedFile read_recipe(
    const std::filesystem::path& file, const std::string& layer, const ReadOptions& options
);

/// Readers of one language each. The Lua reader is the sandbox of lua_sandbox.hpp.
[[nodiscard]] Value read_toml(const SourcePtr& source);
[[nodiscard]] Value read_json(const SourcePtr& source);
[[nodiscard]] ParsedFile read_lua(const SourcePtr& source, const ReadOptions& options);

/// Checks nothing but the syntax of a recipe, for the program before it loads anything: a Lua
/// recipe does not run.
///
/// Throws:  as read_recipe
void check_syntax(const std::filesystem::path& file);

/// The tree of one file by itself.
[[nodiscard]] Value evaluate(const std::filesystem::path& file, const ReadOptions& options = {});

} // namespace mh
