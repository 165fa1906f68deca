#pragma once
/// JSON from files that are not trusted: what a lenient parser lets pass is refused here.

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <string>
#include <string_view>

namespace mh {

struct JsonLimits {
  size_t depth = 64;       ///< objects and arrays within each other
  size_t values = 8 << 20; ///< values of all kinds
};

/// Parses the whole of `text`. `where` is the file, for messages; nothing of the text is repeated
/// in them but keys, made printable.
///
/// Throws:  mh::Error (exit code 5) for a syntax error, bytes that are no UTF-8, a NUL byte, a byte
/// order
///          mark, a key given twice in one object, a number out of range, or a limit passed
[[nodiscard]] nlohmann::json
parse_json(std::string_view text, const std::string& where, JsonLimits limits = {});

/// A line of JSON for other programs. Text that is not ASCII is written as \uXXXX, so that none of it
/// changes what a terminal shows; bytes that are no UTF-8 are replaced.
[[nodiscard]] std::string json_text(const nlohmann::json& json);
[[nodiscard]] std::string json_text(const nlohmann::ordered_json& json);

/// The member of an object. The `json_` functions throw mh::Error (exit code 5) "WHERE: `key` is
/// ..." if the member is missing or of another type.
[[nodiscard]] const nlohmann::json&
json_member(const nlohmann::json& object, std::string_view key, const std::string& where);
[[nodiscard]] const std::string&
json_string(const nlohmann::json& object, std::string_view key, const std::string& where);
/// An integer from 0 to 2^63 - 1: no sign, no fraction, no exponent.
[[nodiscard]] int64_t
json_size(const nlohmann::json& object, std::string_view key, const std::string& where);
/// A value that is such an integer.
[[nodiscard]] bool is_json_size(const nlohmann::json& value);

} // namespace mh
