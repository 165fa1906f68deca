#pragma once
/// JSON files of other programs, read as recipes are, but for null: it is a value there.

#include "core/language/source.hpp"
#include "megahost/value.hpp"

namespace mh {

/// Throws:  mh::RecipeError with the place for bad syntax, a key given twice, or no object
[[nodiscard]] Value read_foreign_json(const SourcePtr& source);

} // namespace mh
