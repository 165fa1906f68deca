#include "core/recipe/load.hpp"
#include "core/schema/sections.hpp"

namespace mh {

namespace {

/// A plugin's bare name as the table that its options join: `device = "mine"` under
/// `device = { peak = 1e12 }`.
Value with_options(const Value& name) {
  Value table = Table{{"use", name}};
  table.origin = name.origin;
  return table;
}

Value merge_tables(const Value& base, const Value& over) {
  if (base.is_string() && over.is_table()) {
    return merge_tables(with_options(base), over);
  }
  if (!base.is_table() || !over.is_table()) {
    return over;
  }
  const Value *before = base.find("use"), *after = over.find("use");
  if (before && after && !(*before == *after)) { // the options are the other plugin's
    return over;
  }
  Value result = base;
  result.origin = over.origin.source ? over.origin : base.origin;
  for (const auto& entry : over.as_table()) {
    const Value* below = base.find(entry.key);
    result.as_table().set(
        entry.key, below ? merge_tables(*below, entry.value) : entry.value, entry.key_origin
    );
  }
  return result;
}

/// The rest of a section when another plugin takes it over: the core's fields.
Value core_part(const Value& section, std::string_view name) {
  Value kept = Table{};
  kept.origin = section.origin;
  for (const auto& entry : section.as_table()) {
    if (entry.key != "use" && core_schema(name).find(entry.key)) {
      kept.as_table().set(entry.key, entry.value, entry.key_origin);
    }
  }
  return kept;
}

bool changes_plugin(const PluginSectionInfo& info, const Value& base, const Value& over) {
  const Value* after = over.find("use");
  if (!after || !after->is_string() || !base.is_table()) {
    return false;
  }
  const Value* before = base.find("use");
  if (before) {
    return !before->is_string() || before->as_string() != after->as_string();
  }
  return !info.default_use.empty() && after->as_string() != info.default_use;
}

} // namespace

Value merge(const Value& base, const Value& over) {
  Value lower = base;
  if (lower.is_table()) {
    for (const PluginSectionInfo& info : kPluginSections) {
      const Value* mine = lower.find(info.name);
      const Value* theirs = over.find(info.name);
      if (mine && theirs && changes_plugin(info, *mine, *theirs)) {
        lower.as_table().set(std::string(info.name), core_part(*mine, info.name));
      }
    }
  }
  return merge_tables(lower, over);
}

} // namespace mh
