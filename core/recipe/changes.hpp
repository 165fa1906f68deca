#pragma once
/// The changes of a recipe that continues a checkpoint: each key, and whether it may change.

#include "megahost/conditions.hpp"
#include "megahost/schema.hpp"
#include "megahost/value.hpp"

#include <map>
#include <optional>
#include <string>
#include <vector>

namespace mh {

/// A key whose value differs between a recipe and that of a checkpoint.
struct KeyChange {
  std::string key;                 ///< "model.layers"
  std::optional<Value> now, saved; ///< a side that lacks it has no value
  bool may_change = false;         ///< may_change_on_resume
  bool path = false;               ///< Field::path: files may have moved

  /// "model.layers 5 (checkpoint 6)".
  [[nodiscard]] std::string text() const;
};

/// A resolved recipe's tree by section, as text: what a checkpoint keeps.
[[nodiscard]] std::map<std::string, std::string> section_texts(const Value& tree);

/// The opposite of `section_texts`: what a checkpoint kept of its recipe, as a tree.
///
/// Throws:  RecipeError if it is none
[[nodiscard]] Value read_sections(const std::map<std::string, std::string>& sections);

/// Compares a resolved recipe with the one that a checkpoint kept. A key that only one of them has
/// counts with its schema's default. If a section names another plugin, the fields that only one of
/// the two plugins has are left out.
///
/// `schemas`: by section, the plugin's fields included; "" is the top level, as in Resolved
[[nodiscard]] std::vector<KeyChange> changes_since(
    const std::map<std::string, std::string>& saved,
    const Value& tree,
    const SectionSchemas& schemas
);

/// Whether `key` is one of `allowed` or lies in a section that is: "model" allows "model.layers".
[[nodiscard]] bool is_allowed(const std::vector<std::string>& allowed, const std::string& key);

/// Throws:  mh::Error with the nearest key if one of `allowed` is neither a section nor a key
void check_allowed(const std::vector<std::string>& allowed, const SectionSchemas& schemas);

} // namespace mh
