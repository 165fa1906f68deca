#pragma once
/// Long lines on narrow terminals: broken between words, where a terminal would break within them.

#include <string>
#include <string_view>

namespace mh {

/// A line, without its end, in pieces of at most `width` cells, each with an end but the last.
/// Words stay whole; what follows is set under where the line's text begins, behind a name and two
/// blanks or more; a command goes on behind a backslash, as a shell reads it. JSON, excerpts of
/// files and what moves the cursor stay as they are.
[[nodiscard]] std::string wrapped(std::string_view line, int width);

/// From now on whole lines that this process writes to `stdout` and `stderr` are wrapped, where
/// those are terminals of a known width.
void wrap_terminals();

} // namespace mh
