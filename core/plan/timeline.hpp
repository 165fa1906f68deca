#pragma once
/// A pipeline's timeline drawn: a row a stage, time to the right.

#include "core/draw/terminal.hpp"
#include "core/step/pipeline_lists.hpp"

#include <string>

namespace mh {

/// Rows of cells: a letter where a pass begins, small forward and capital backward, by microbatch;
/// "+" for weight gradients that were put off; "-" while a pass runs, "." while the stage waits.
///
/// Returns: nothing if the passes are more than the cells
[[nodiscard]] std::string timeline_rows(const Timeline& timeline, const Terminal& terminal);

/// A complete SVG document: boxes with the number of their microbatch.
[[nodiscard]] std::string timeline_svg(const std::string& title, const Timeline& timeline);

} // namespace mh
