#pragma once
/// HTML pages of ours: one file without outside resources, readable on light and on dark screens.

#include "core/draw/columns.hpp"

#include <cstdint>
#include <string>

namespace mh::html {

/// A whole page; `body` is HTML, the title is text. It loads itself again every `seconds`; 0: it
/// stays.
[[nodiscard]] std::string
page(const std::string& title, const std::string& body, int64_t seconds = 0);

/// An element around text.
[[nodiscard]] std::string element(const std::string& tag, const std::string& text);

/// A row of a table: its tag and class ("" is none), each cell in `cell`, th or td.
[[nodiscard]] std::string row(const TextRow& cells, const char* cell, const std::string& classes);

} // namespace mh::html
