#pragma once
/// A recipe's values as JSON, for programs that read what commands print.

#include "megahost/value.hpp"

#include <nlohmann/json.hpp>

namespace mh {

[[nodiscard]] nlohmann::ordered_json json_value(const Value& value);

} // namespace mh
