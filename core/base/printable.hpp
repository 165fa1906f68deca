#pragma once
/// Names that come from files, made fit for messages and logs.

#include <string>
#include <string_view>

namespace mh {

/// The name in double quotes, printable ASCII only: every other byte is written as \xNN, and a name
/// of more than 80 bytes is cut. A file can thus put no line break, colour code or bidi mark into a
/// log.
[[nodiscard]] std::string printable(std::string_view name);

/// "[2, 3]".
template <class Integers>
[[nodiscard]] std::string shape_text(const Integers& shape) {
  std::string text = "[";
  for (const auto size : shape) {
    text += (text.size() == 1 ? "" : ", ") + std::to_string(size);
  }
  return text + "]";
}

/// True for a name that can only mean a file in the folder it is looked up in: not empty, no slash,
/// nothing that a terminal does not show (visible.hpp), not "." or "..", at most 255 bytes.
[[nodiscard]] bool is_file_name(std::string_view name);

} // namespace mh
