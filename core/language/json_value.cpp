#include "core/language/json_value.hpp"

namespace mh {

nlohmann::ordered_json json_value(const Value& value) {
  switch (value.type()) {
  case Value::Type::null:
    return nullptr;
  case Value::Type::boolean:
    return value.as_boolean();
  case Value::Type::integer:
    return value.as_integer();
  case Value::Type::number:
    return value.as_number();
  case Value::Type::string:
    return value.as_string();
  case Value::Type::array: {
    auto array = nlohmann::ordered_json::array();
    for (const Value& item : value.as_array()) {
      array.push_back(json_value(item));
    }
    return array;
  }
  case Value::Type::table: {
    auto object = nlohmann::ordered_json::object();
    for (const auto& entry : value.as_table()) {
      object[entry.key] = json_value(entry.value);
    }
    return object;
  }
  }
  return nullptr;
}

} // namespace mh
