#pragma once
/// Text of which parts come from files of other people, made fit for a terminal.

#include <string>
#include <string_view>

namespace mh {

/// The text with what could make a terminal show something else than it says written out: control
/// characters and bytes that are no UTF-8 as \xNN, marks of writing direction (U+202E), invisible
/// characters and separators of lines as \u202e. All else, whatever script it is in, stays. The
/// characters of `kept`, such as "\n", stay too.
///
/// Source:  Unicode Technical Report 36, 2.2 and 2.5; CVE-2021-42574
[[nodiscard]] std::string visible(std::string_view text, std::string_view kept = "");

/// Whether a name has something that `visible` would write out.
[[nodiscard]] bool has_invisible(std::string_view name);

} // namespace mh
