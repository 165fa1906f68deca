#pragma once
/// The little XML that stores speak: elements by name, texts with five entities. Text that is no
/// such document yields nothing.

#include <string>
#include <string_view>
#include <vector>

namespace s3 {

/// The content of the first element of a name, with the elements in it; empty if there is none.
[[nodiscard]] std::string first_element(std::string_view xml, std::string_view name);

/// The content of each element of a name, in order.
[[nodiscard]] std::vector<std::string> elements(std::string_view xml, std::string_view name);

/// A text without its entities, "a&b" of "a&amp;b".
[[nodiscard]] std::string unescaped(std::string_view text);
[[nodiscard]] std::string escaped(std::string_view text);

/// "host:port" of "https://host:port/path".
[[nodiscard]] std::string host_of(std::string_view url);

} // namespace s3
