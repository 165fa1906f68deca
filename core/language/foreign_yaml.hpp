#pragma once
/// YAML files of other programs: one document, whose root is a table.

#include "core/language/source.hpp"
#include "megahost/value.hpp"

namespace mh {

/// Texts, numbers, true and false, null, lists and tables, each with its place; tags are passed over,
/// aliases stand for what their anchor has.
///
/// Throws:  mh::RecipeError with the place for bad syntax, a key given twice, more than one document,
///          or no table
[[nodiscard]] Value read_foreign_yaml(const SourcePtr& source);

} // namespace mh
