#pragma once
/// Bytes that files of vocabularies write as base64.

#include <string>
#include <string_view>

namespace mh::text {

/// Appends the bytes that base64 stands for; `=` at the end may be left out.
///
/// Returns: false if it is none
/// Source:  RFC 4648, section 4
[[nodiscard]] bool from_base64(std::string_view text, std::string& ret_bytes);

} // namespace mh::text
