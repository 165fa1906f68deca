#pragma once
/// Plugins and their fields as text for a terminal.

#include "core/draw/terminal.hpp"
#include "megahost/registry.hpp"

#include <string>

namespace mh {

/// A table: name, type, default, meaning.
[[nodiscard]] std::string field_lines(const Schema& schema, const Terminal& terminal);

/// The core's own fields of the section that names this kind, if a plugin supplies that section.
[[nodiscard]] Schema section_fields(Kind kind);

/// All about what a plugin offers: where it is from, its fields, those of its section.
[[nodiscard]] std::string describe(const Registry::Entry& entry, const Terminal& terminal);

} // namespace mh
