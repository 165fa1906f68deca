#pragma once
/// Classes of characters in regular expressions, by the tables of Unicode 16.

#include <string>
#include <string_view>

namespace mh::text {

/// The expression with `\p{..}`, `\s`, `\d`, `\w`, their opposites, classes within classes and
/// intersections (`[\p{L}&&[^\p{Han}]]`) as ranges of code points.
///
/// Throws:  mh::Error (exit code 5) "WHERE: ..." for a class or an escape of which there is no table
[[nodiscard]] std::string with_ranges(std::string_view expression, const std::string& where);

/// Throws:  mh::Error (exit code 5) "WHERE: WHY", always
[[noreturn]] void refuse_pattern(const std::string& where, const std::string& why);

} // namespace mh::text
