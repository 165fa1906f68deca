#pragma once
/// The core's own part of the recipe's schema.

#include "megahost/kind.hpp"
#include "megahost/recipe.hpp"
#include "megahost/schema.hpp"

#include <array>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace mh {

/// A section that a plugin supplies.
struct PluginSectionInfo {
  std::string_view name;
  Kind kind;
  std::string_view default_use; ///< empty: must be given
};

inline constexpr std::array<PluginSectionInfo, 6> kPluginSections{{
    {"model", Kind::architecture, ""},
    {"recompute", Kind::recompute, "none"},
    {"optimizer", Kind::optimizer, "adamw"},
    {"lr_schedule", Kind::lr_schedule, "constant"},
    {"data", Kind::corpus, "text"},
    {"tokenizer", Kind::tokenizer, "byte"},
}};

[[nodiscard]] const PluginSectionInfo* plugin_section(std::string_view name);

/// The recipe's top level: fields that are no section ("name", "precision", ...).
struct TopLevel {
  std::string name;
  std::vector<std::string> plugins;
  std::string precision = "auto";
  std::string device = "cpu";
  Value sweep;
};

[[nodiscard]] const Fields<TopLevel>& top_fields();
[[nodiscard]] const Fields<Recipe::Parallel>& parallel_fields();
[[nodiscard]] const Fields<Recipe::Batch>& batch_fields();
[[nodiscard]] const Fields<Recipe::Train>& train_fields();
[[nodiscard]] const Fields<Recipe::Fp16>& fp16_fields();
[[nodiscard]] const Fields<Recipe::Fp8>& fp8_fields();
[[nodiscard]] const Fields<Recipe::Guards>& guards_fields();
[[nodiscard]] const Fields<Recipe::Checkpoint>& checkpoint_fields();
[[nodiscard]] const Fields<Recipe::Comm>& comm_fields();
[[nodiscard]] const Fields<Recipe::Log>& log_fields();
[[nodiscard]] const Fields<Recipe::Model>& model_fields();
[[nodiscard]] const Fields<Recipe::Optimizer>& optimizer_fields();
[[nodiscard]] const Fields<Recipe::LrSchedule>& lr_schedule_fields();
[[nodiscard]] const Fields<Recipe::Data>& data_fields();

/// The core's fields of a section, `use` among them for a plugin's section.
[[nodiscard]] const Schema& core_schema(std::string_view section);

/// `core` with a plugin's fields and checks behind it; a plugin's field replaces one of the same
/// name.
[[nodiscard]] Schema with_plugin(Schema core, const Schema& plugin);

/// The whole top level of a recipe: its fields, each section, `extends`.
[[nodiscard]] const Schema& recipe_schema();

/// The table `sweep`.
[[nodiscard]] const Schema& sweep_schema();

/// Every key of schemas by section: "name", "optimizer.lr".
[[nodiscard]] std::vector<std::string> all_keys(const std::map<std::string, Schema>& schemas);

/// Whether a resumed run may have another value of a section's field than its checkpoint; `section`
/// is empty for the top level.
[[nodiscard]] bool may_change_on_resume(std::string_view section, const Field& field);

/// The same of all fields of a schema, in a sentence: "A resumed run may change lr; the other
/// values must be its checkpoint's."
[[nodiscard]] std::string resume_rule(std::string_view section, const Schema& schema);

/// What a section is about: "degrees of the mesh axes, ...".
[[nodiscard]] std::string section_doc(std::string_view section);

/// All sections in the order in which a recipe is printed.
[[nodiscard]] const std::vector<std::string>& section_names();

} // namespace mh
