#include "core/recipe/paths.hpp"

#include "core/base/text.hpp"
#include "core/language/source.hpp"

#include <filesystem>

namespace mh {

namespace fs = std::filesystem;

namespace {

/// The folder that a relative path starts from; empty: the working directory. An option or an
/// argument, which is no file, is its own layer.
fs::path folder_of(const SourcePtr& source) {
  if (!source || source->name == source->layer) {
    return {};
  }
  const fs::path file = source->name;
  const bool kept = file.filename() == "recipe.toml" && is_run_folder(file.parent_path());
  return kept ? fs::path() : file.parent_path();
}

} // namespace

Value absolute_path(const Value& path) {
  if (!path.is_string() || path.as_string().empty() || path.as_string().starts_with("@") ||
      scheme_of(path.as_string())) {
    return path;
  }
  const fs::path file = folder_of(path.origin.source) / path.as_string();
  Value absolute = fs::absolute(file).lexically_normal().string();
  absolute.origin = path.origin;
  return absolute;
}

std::string seen_from_here(const std::string& path) {
  std::error_code ignored;
  const fs::path here = fs::current_path(ignored);
  const std::string inside =
      scheme_of(path) ? "" : fs::path(path).lexically_relative(here).string();
  return inside.empty() || inside == "." || inside.starts_with("..") ? path : inside;
}

RunPlaces run_places(const Value& tree) {
  const auto word = [&](const char* key) {
    const Value* value = tree.find_path(key);
    return value != nullptr && value->is_string() ? seen_from_here(value->as_string()) : "";
  };
  const std::string by_name = "runs/" + word("name");
  std::string run = word("run_dir"), checkpoints = word("checkpoint.dir");
  if (checkpoints.empty()) {
    checkpoints = run.empty() ? by_name : run;
  }
  if (run.empty()) {
    run = scheme_of(checkpoints) ? by_name : checkpoints; // a run folder is files
  }
  return {checkpoints, run == checkpoints ? std::nullopt : std::optional(run)};
}

std::string checkpoints_of(const RunPlaces& places, const std::string& taken) {
  const auto plain = [](const std::string& folder) { // without a slash at its end
    return folder.ends_with('/') ? folder.substr(0, folder.size() - 1) : folder;
  };
  if (!places.run) {
    return taken;
  }
  const std::string name = fs::path(plain(taken)).filename();
  const std::string first = fs::path(plain(*places.run)).filename();
  return plain(places.checkpoints) + (name.starts_with(first) ? name.substr(first.size()) : "");
}

void change_paths(
    const Schema& schema,
    const std::function<Value(const Value& path, const Field& field)>& change,
    Table& ret_table
) {
  for (const Field& field : schema.fields) {
    Value* value = field.path || field.item ? ret_table.find(field.name) : nullptr;
    if (value == nullptr) {
      continue;
    }
    if (field.item) {
      const auto of_field = [&](const Value& path, const Field&) { return change(path, field); };
      if (value->is_array()) {
        for (Value& item : value->as_array()) {
          change_paths(*field.item, of_field, item.as_table());
        }
      }
      continue;
    }
    if (!value->is_array()) {
      *value = change(*value, field);
      continue;
    }
    for (Value& item : value->as_array()) {
      if (!item.origin.source) {
        item.origin = value->origin;
      }
      item = change(item, field);
    }
  }
}

void make_paths_absolute(const Schema& schema, Table& ret_table) {
  const auto absolute = [](const Value& path, const Field&) { return absolute_path(path); };
  change_paths(schema, absolute, ret_table);
}

} // namespace mh
