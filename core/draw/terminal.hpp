#pragma once
/// The abilities of a terminal: colours and a bar.

#include <cstdint>
#include <string>
#include <string_view>

namespace mh {

enum class Paint : uint8_t {
  plain,
  bold,
  dim,
  red,
  green,
  yellow,
  blue,
  magenta,
  cyan,
  bright_green,
  bright_blue
};

/// The destination of text, and its abilities.
struct Terminal {
  bool interactive = false; ///< a person looks at it, and lines can be overwritten
  bool colour = false;      ///< interactive, TERM is not "dumb", NO_COLOR is unset or empty
  int width = 100;          ///< columns
  int height = 30;          ///< lines

  /// Source:  https://no-color.org
  [[nodiscard]] static Terminal of(int file_descriptor);

  /// `text` in a colour, or as it is where there are none.
  [[nodiscard]] std::string paint(Paint paint, std::string_view text) const;
};

/// A bar of `columns` cells, filled to an eighth of a cell: "█████▍    ".
[[nodiscard]] std::string bar(double share, int columns);

/// Cells that UTF-8 text takes, escape sequences not counted.
[[nodiscard]] int cells(std::string_view text);

} // namespace mh
