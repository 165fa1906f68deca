#pragma once
/// The output of `megahost recipe check|show|explain|diff`, as text. The command line only prints
/// it.

#include "core/recipe/load.hpp"
#include "core/recipe/resolve.hpp"

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace mh {

enum class RecipeFormat : uint8_t { toml, lua, json };

/// "toml", "lua" or "json".
///
/// Throws:  mh::Error for another word
[[nodiscard]] RecipeFormat recipe_format(const std::string& name);

/// The format that the end of a file's name says: ".toml", ".lua" or ".json".
///
/// Throws:  mh::Error for another end
[[nodiscard]] RecipeFormat recipe_format_of(const std::filesystem::path& file);

/// A resolved recipe as a recipe that resolves to the same. With `origins` each value says where it
/// comes from: in a comment, or, in JSON, which has none, in a table "origins" next to "recipe".
[[nodiscard]] std::string show_recipe(const Recipe& recipe, RecipeFormat format, bool origins);

/// A table as TOML: sections, each with a line a key.
[[nodiscard]] std::string toml_text(const Table& table);

/// One line: "recipes/tiny.lua is a valid recipe: model llama, ...".
[[nodiscard]] std::string check_recipe(const Loaded& loaded, const Resolved& resolved);

/// Every layer that sets `key` ("optimizer.lr", or a section for all its keys), low to high, the
/// winner marked with an arrow.
///
/// Throws:  mh::Error if no such key exists, with the nearest one
[[nodiscard]] std::string
explain_recipe(const Loaded& loaded, const Resolved& resolved, const std::string& key);

/// A sentence for each plugin that `--set` put in another's place ("model.use=moe") where that took
/// fields with it that the new one has as well.
[[nodiscard]] std::vector<std::string>
fields_left_out(const Loaded& loaded, const Resolved& resolved);

/// A key in which two trees differ; a side that lacks it has no value.
struct Difference {
  std::string key;
  std::optional<Value> left, right;
};

[[nodiscard]] std::vector<Difference> differences(const Value& left, const Value& right);

/// The keys in which two resolved recipes differ, one line for each side; empty if there are none.
[[nodiscard]] std::string diff_recipes(const Recipe& left, const Recipe& right);

/// The section `parallel` of one rank: degrees, and what the core reads of strategies.
[[nodiscard]] Table one_rank(const Schema& parallel);

/// Most that `scale_recipe` leaves of a model.
struct ScaleLimits {
  int64_t layers = 4;
  int64_t hidden = 256;
  int64_t heads = 8;
  int64_t seq_length = 128;
  int64_t global_batch = 8;
  int64_t iters = 20;
  std::optional<int64_t> length{}; ///< length of a shorter run: `train.iters` or `samples`
  std::vector<int64_t>
      chunks{}; ///< a stage may have of them under the recipe's schedule; empty: any
};

/// A layer that shrinks a resolved recipe to `ranks` ranks of this machine and keeps its structure:
/// the same plugins and choices, the ratio of query to key-value heads and of feed-forward to
/// hidden size, the axes of its layout as far as the ranks go; fewer layers, narrower, the byte
/// tokenizer, made-up text. Lay it on with LoadOptions::layers.
[[nodiscard]] Layer scale_recipe(
    const Value& tree,
    const PluginLookup& plugins,
    int64_t ranks = 1,
    const ScaleLimits& limits = {}
);

/// Sizes of the small model alone. `architecture`: null where no plugin has it.
[[nodiscard]] Table
scaled_model(const Value& model, const Registry::Entry* architecture, const ScaleLimits& limits);

/// A layer that makes a recipe's model small and of uneven sizes, for a check of layouts: 4 layers,
/// 12 heads of 20, 6 key-value heads, feed-forward 5/2 of hidden, vocabulary 1,003, sequence 96,
/// windows of a third of it; 8 samples a step, one a microbatch, on one rank. The model's schema
/// decides which of them it has, and its architecture sets further sizes (model_scale.hpp);
/// everything else stays as it is. A plugin has the architecture that `tree` names.
[[nodiscard]] Layer check_layer(const Value& tree, const PluginLookup& plugins);

} // namespace mh
