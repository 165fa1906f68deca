#pragma once
/// Evaluated recipe files as bytes, for the processes that a command starts as its ranks: a Lua
/// recipe runs once for all of them.

#include "core/recipe/load.hpp"

#include <optional>
#include <string>
#include <string_view>

namespace mh {

/// `asked`: the recipe's name as the command line has it. Numbers keep their bits, values the
/// places that they were written at.
[[nodiscard]] std::string pack_files(const std::string& asked, const RecipeFiles& files);

/// The files that `pack_files` packed for the same name; nothing if they were for another.
[[nodiscard]] std::optional<RecipeFiles>
unpack_files(const std::string& asked, std::string_view bytes);

} // namespace mh
