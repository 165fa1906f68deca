#pragma once
/// Trees as YAML, with comments.

#include "megahost/value.hpp"

#include <string>

namespace mh {

/// Puts a comment behind the last line of a table so far, or, where it is empty, above its first.
void add_comment(Table& ret_table, const std::string& words);

/// The table as one YAML document: keys in their order, strings in quotes where YAML 1.1 or 1.2
/// would read something else, strings of several lines as blocks.
[[nodiscard]] std::string yaml_text(const Table& document);

} // namespace mh
