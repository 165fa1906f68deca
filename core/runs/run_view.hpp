#pragma once
/// A run as people watch it: its facts, its curves, its ranks and what happened to it, on a
/// terminal and as a page.

#include "core/draw/terminal.hpp"
#include "core/runs/run_status.hpp"

#include <nlohmann/json_fwd.hpp>

#include <optional>
#include <string>

namespace mh {

/// A fact a line.
[[nodiscard]] std::string status_text(const RunStatus& run, const Terminal& terminal);

/// The whole view in at most so many lines: of the curve, the ranks and the events what has room.
[[nodiscard]] std::string view_text(const RunStatus& run, const Terminal& terminal, int lines);

/// The same as an HTML page, which loads itself again every `seconds`; 0: it stays.
[[nodiscard]] std::string view_page(const RunStatus& run, int64_t seconds);

/// Seconds by cause, null where nothing is known.
[[nodiscard]] nlohmann::ordered_json goodput_json(const std::optional<Goodput>& goodput);

} // namespace mh
