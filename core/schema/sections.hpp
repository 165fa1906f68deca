#pragma once
/// The core's own part of the recipe's schema.

#include "megahost/conditions.hpp"
#include "megahost/kind.hpp"
#include "megahost/recipe.hpp"
#include "megahost/registry.hpp"
#include "megahost/schema.hpp"

#include <array>
#include <map>
#include <optional>
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

inline constexpr std::array<PluginSectionInfo, 7> kPluginSections{{
    {"model", Kind::architecture, ""},
    {"recompute", Kind::recompute, "none"},
    {"optimizer", Kind::optimizer, "adamw"},
    {"lr_schedule", Kind::lr_schedule, "constant"},
    {"data", Kind::corpus, "text"},
    {"tokenizer", Kind::tokenizer, "byte"},
    {"checkpoint", Kind::checkpoint_format, "native"},
}};

[[nodiscard]] const PluginSectionInfo* plugin_section(std::string_view name);

/// The recipe's top level: fields that are no section ("name", "precision", ...).
struct TopLevel {
  std::string name;
  std::vector<std::string> plugins;
  std::string precision = "auto";
  PluginSection device{"cpu", Table{}};
  std::optional<PluginSection> launcher, storage;
  std::optional<std::string> run_dir;
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
[[nodiscard]] const Fields<Recipe::Load>& load_fields();
[[nodiscard]] const Fields<Recipe::Comm>& comm_fields();
[[nodiscard]] const Fields<Recipe::Log>& log_fields();
[[nodiscard]] const Fields<Recipe::Model>& model_fields();
[[nodiscard]] const Fields<Recipe::Optimizer>& optimizer_fields();
[[nodiscard]] const Fields<Recipe::LrSchedule>& lr_schedule_fields();
[[nodiscard]] const Fields<Recipe::Data>& data_fields();

/// The core's fields of a section, `use` among them for a plugin's section.
[[nodiscard]] const Schema& core_schema(std::string_view section);

/// The core's fields of all sections, and those of the top level under "".
[[nodiscard]] const SectionSchemas& core_schemas();

/// Keys of `parallel` that the core reads without a member of Recipe::Parallel.
[[nodiscard]] Field strategies_field();
[[nodiscard]] Field elastic_field();

/// Strategies in the order in which they apply and are listed: by the mesh axes that they are
/// about, those without keys first.
[[nodiscard]] std::vector<const Registry::Entry*>
in_order(std::vector<const Registry::Entry*> strategies);

/// A section's fields, where several plugins share it: those of the strategies among `plugins` and
/// the core's in `parallel`, the core's alone elsewhere. A key of two strategies is the first
/// one's.
[[nodiscard]] Schema
shared_schema(std::string_view section, const std::vector<const Registry::Entry*>& plugins);

/// Every section as `shared_schema` gives it, with these strategies.
[[nodiscard]] SectionSchemas section_schemas(const std::vector<const Registry::Entry*>& plugins);

/// Like `complete` of schema.hpp; what an unknown option was meant to be is looked up in `known`.
[[nodiscard]] Value complete(
    const Schema& schema,
    const Value& table,
    const std::string& path,
    std::vector<Problem>& problems,
    const SectionSchemas& known
);

/// `core` with a plugin's fields and checks behind it; a plugin's field replaces one of the same
/// name.
[[nodiscard]] Schema with_plugin(Schema core, const Schema& plugin);

/// The whole top level of a recipe: its fields, each section, `extends`.
[[nodiscard]] const Schema& recipe_schema();

/// The table `sweep`.
[[nodiscard]] const Schema& sweep_schema();

/// Every key of schemas by section: "name", "optimizer.lr".
[[nodiscard]] std::vector<std::string> all_keys(const SectionSchemas& schemas);

/// Whether a resumed run may have another value of a section's field than its checkpoint; `section`
/// is empty for the top level.
[[nodiscard]] bool may_change_on_resume(std::string_view section, const Field& field);

/// The fields of a section that a resumed run may change, in a sentence: "A resumed run may change
/// lr; the other values must be its checkpoint's."
[[nodiscard]] std::string resume_rule(std::string_view section, const Schema& schema);

/// The subject of a section: "degrees of the mesh axes, ...".
[[nodiscard]] std::string section_doc(std::string_view section);

/// All sections in the order in which a recipe is printed.
[[nodiscard]] const std::vector<std::string>& section_names();

} // namespace mh
