#include "core/recipe/paths.hpp"

#include <filesystem>

namespace mh {

namespace fs = std::filesystem;

Value absolute_path(const Value& path) {
  if (!path.is_string() || path.as_string().empty() || path.as_string().starts_with("@")) {
    return path;
  }
  const auto& source = path.origin.source; // of the command line: its option's name
  const fs::path folder = source ? fs::path(source->name).parent_path() : fs::path();
  Value absolute = fs::absolute(folder / path.as_string()).lexically_normal().string();
  absolute.origin = path.origin;
  return absolute;
}

void make_paths_absolute(const Schema& schema, Table& ret_table) {
  for (const Field& field : schema.fields) {
    Value* value = field.path ? ret_table.find(field.name) : nullptr;
    if (value == nullptr) {
      continue;
    }
    if (!value->is_array()) {
      *value = absolute_path(*value);
      continue;
    }
    for (Value& item : value->as_array()) {
      if (!item.origin.source) {
        item.origin = value->origin;
      }
      item = absolute_path(item);
    }
  }
}

} // namespace mh
