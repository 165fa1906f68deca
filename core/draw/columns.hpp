#pragma once
/// Rows of text under one another.

#include "core/draw/terminal.hpp"

#include <string>
#include <vector>

namespace mh {

using TextRow = std::vector<std::string>;

/// The rows, each with its end of line, in columns two cells apart. The first row is the head.
/// Columns whose cells are all numbers, as "12", "1,652" or "-", are set flush right; `paints`
/// colours columns, plain where it ends.
[[nodiscard]] std::string columns(
    const std::vector<TextRow>& rows,
    const Terminal& terminal,
    const std::vector<Paint>& paints = {}
);

} // namespace mh
