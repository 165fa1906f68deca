#include "core/recipe/commands.hpp"
#include "core/recipe/resolve.hpp"
#include "core/schema/sections.hpp"

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <utility>

namespace mh {

namespace {

int64_t integer(const Value& tree, const char* key) {
  const Value* value = tree.find_path(key);
  return value && value->is_integer() ? value->as_integer() : 0;
}

/// Experts that are left of many: still a few in each group.
constexpr int64_t kFewExperts = 16;

/// The architecture that the recipe names; null if no plugin has it.
const Registry::Entry* architecture_of(const Value& tree, const PluginLookup& plugins) {
  const Value* use = tree.find_path("model.use");
  return use != nullptr && use->is_string() ? plugins.find(Kind::architecture, use->as_string())
                                            : nullptr;
}

/// Adds what the architecture makes of sizes of its own.
void add_own_sizes(
    Table& ret_small, const Value& model, const Registry::Entry* architecture, bool uneven
) {
  if (architecture == nullptr || !architecture->scaled) {
    return;
  }
  const Value given = ret_small;
  const ModelScale to{
      .layers = integer(given, "layers"),
      .hidden = integer(given, "hidden"),
      .heads = integer(given, "heads"),
      .seq_length = integer(given, "seq_length"),
      .uneven = uneven};
  for (const auto& entry : architecture->scaled(model, to)) {
    if (architecture->schema.find(entry.key) != nullptr) { // recipes may set it
      ret_small.set(entry.key, entry.value);
    }
  }
}

Table scale_model(const Value& tree, const ScaleLimits& limits) {
  Table model;
  if (tree.find_path("model.layers")) {
    model.set("layers", std::min(integer(tree, "model.layers"), limits.layers));
  }
  if (const int64_t experts = integer(tree, "model.experts"); experts > 0) {
    model.set("experts", std::min(experts, kFewExperts));
  }
  model.set("seq_length", std::min(integer(tree, "model.seq_length"), limits.seq_length));
  if (tree.find_path("model.vocab")) {
    model.set("vocab", Value()); // the tokenizer's
  }
  const int64_t hidden = integer(tree, "model.hidden");
  const int64_t heads = integer(tree, "model.heads");
  if (hidden == 0 || heads == 0) {
    return model;
  }
  const int64_t kv_heads =
      integer(tree, "model.kv_heads") > 0 ? integer(tree, "model.kv_heads") : heads;
  const int64_t share = std::max<int64_t>(1, heads / kv_heads);
  const int64_t new_kv = std::clamp<int64_t>(limits.heads / share, 1, kv_heads);
  const int64_t new_heads = std::min(heads, new_kv * std::min(share, limits.heads));
  const int64_t head_dim = std::max<int64_t>(2, limits.hidden / limits.heads);
  const int64_t new_hidden = std::min(hidden, new_heads * head_dim);
  model.set("heads", new_heads);
  model.set("hidden", new_hidden);
  if (tree.find_path("model.kv_heads") && integer(tree, "model.kv_heads") > 0) {
    model.set("kv_heads", new_kv);
  }
  if (tree.find_path("model.head_dim")) {
    model.set("head_dim", std::max<int64_t>(2, new_hidden / new_heads));
  }
  if (const int64_t ffn = integer(tree, "model.ffn_hidden"); ffn > 0) {
    const double ratio = static_cast<double>(ffn) / static_cast<double>(hidden);
    const auto eights = std::llround(ratio * static_cast<double>(new_hidden) / 8);
    model.set("ffn_hidden", std::max<int64_t>(1, eights) * 8);
  }
  return model;
}

/// An axis of the mesh in a layout that shrinks.
struct ScaledDegree {
  std::string name; ///< the key by which the recipe gives it ranks; "" if none is known
  int64_t degree;   ///< it has now
  int64_t most;
};

ScaledDegree axis_of(const Value& tree, const Schema& parallel, MeshAxis axis, int64_t limit) {
  ScaledDegree found{"", 1, 1};
  for (const Field& field : parallel.fields) {
    const int64_t given = integer(tree, ("parallel." + field.name).c_str());
    if (field.degree && field.along == axis && (found.name.empty() || given > found.most)) {
      found = {field.name, 1, std::max<int64_t>(1, given)};
    }
  }
  found.most = std::min(found.most, limit);
  return found;
}

/// The recipe's layout on `ranks` ranks: its axes doubled in turn, none beyond what the recipe has
/// or the small model allows; what is left over goes to data. The global batch grows to as many
/// samples as give each data-parallel rank the same number.
Table scaled_layout(
    const Value& tree,
    const Schema& parallel,
    int64_t ranks,
    int64_t& ret_global,
    const ScaleLimits& limits
) {
  const int64_t global = ret_global;
  Table layout = one_rank(parallel);
  const Value* data = tree.find_path("parallel.data");
  const bool automatic = data != nullptr && data->is_string();
  const int64_t layers = std::min(integer(tree, "model.layers"), limits.layers);
  const int64_t heads = std::min(integer(tree, "model.heads"), limits.heads);
  ScaledDegree axes[] = {
      axis_of(tree, parallel, MeshAxis::tp, heads),
      axis_of(tree, parallel, MeshAxis::pp, std::max<int64_t>(1, layers)),
      axis_of(tree, parallel, MeshAxis::cp, limits.seq_length / 2),
      axis_of(tree, parallel, MeshAxis::dp, global)};
  if (automatic) {
    axes[3].most = global;
  }
  int64_t product = 1;
  for (bool grown = true; grown;) {
    grown = false;
    for (ScaledDegree& axis : axes) {
      const bool whole = &axis != &axes[3] || global % (2 * axis.degree) == 0;
      if (2 * product <= ranks && 2 * axis.degree <= axis.most && whole) {
        axis.degree *= 2;
        product *= 2;
        grown = true;
      }
    }
  }
  axes[3].degree *= ranks % product == 0 ? ranks / product : 1;
  ret_global = (global + axes[3].degree - 1) / axes[3].degree * axes[3].degree;
  for (const ScaledDegree& axis : axes) {
    if (!axis.name.empty()) {
      layout.set(axis.name, axis.degree);
    }
  }
  const auto keep = [&](Mechanism mechanism) {
    const Field* field = parallel.find(mechanism);
    if (const Value* value = field ? tree.find_path("parallel." + field->name) : nullptr) {
      layout.set(field->name, *value);
    }
  };
  // Experts are sharded over whatever ranks a stage has.
  const int64_t experts = std::min(integer(tree, "model.experts"), kFewExperts);
  const int64_t of_stage = axes[0].degree * axes[2].degree * axes[3].degree;
  ScaledDegree expert = axis_of(tree, parallel, MeshAxis::ep, std::max<int64_t>(1, experts));
  while (2 * expert.degree <= expert.most && of_stage % (2 * expert.degree) == 0 &&
         experts % (2 * expert.degree) == 0) {
    expert.degree *= 2;
  }
  if (!expert.name.empty()) {
    layout.set(expert.name, expert.degree);
  }
  if (axes[0].degree > 1) {
    keep(Mechanism::sequence);
  }
  if (axes[3].degree > 1) {
    keep(Mechanism::zero);
  }
  if (const int64_t stages = axes[1].degree; stages > 1) {
    const Field* stage_chunks = parallel.find(Mechanism::virtual_stages);
    const std::string key = stage_chunks ? stage_chunks->name : "";
    const int64_t chunks = std::clamp<int64_t>(
        integer(tree, ("parallel." + key).c_str()), 1, std::max<int64_t>(1, layers / stages)
    );
    const auto takes = [&](int64_t count) {
      return limits.chunks.empty() ||
             std::find(limits.chunks.begin(), limits.chunks.end(), count) != limits.chunks.end();
    };
    if (takes(chunks)) {
      keep(Mechanism::schedule);
    }
    const bool divides = ret_global / axes[3].degree % stages == 0;
    layout.set(key, divides || (takes(chunks) && !takes(1)) ? chunks : 1);
  }
  return layout;
}

/// Says of every value that `name` set it.
Layer layer_of(const std::string& name, Value tree) {
  const auto source = std::make_shared<const Source>(Source{name, "", name});
  const auto mark = [&source](const auto& self, Value& value) -> void {
    value.origin.source = source;
    if (value.is_table()) {
      for (auto& entry : value.as_table()) {
        self(self, entry.value);
      }
    }
  };
  mark(mark, tree);
  return {name, std::move(tree)};
}

/// The plugin that a section has unless it names another: it needs no files.
std::string usual(const char* section) {
  return std::string(plugin_section(section)->default_use);
}

} // namespace

Table one_rank(const Schema& parallel) {
  Table layout;
  for (const Field& field : parallel.fields) {
    if (field.degree) {
      layout.set(field.name, 1);
    } else if (field.mechanism != Mechanism::none) {
      layout.set(field.name, field.default_value);
    }
  }
  return layout;
}

Layer check_layer(const Value& tree, const PluginLookup& plugins) {
  const Registry::Entry& architecture = *architecture_of(tree, plugins);
  const Schema& model = architecture.schema;
  constexpr int64_t kHeads = 12, kHeadDim = 10, kHidden = kHeads * kHeadDim, kSeq = 48;
  const std::pair<const char*, int64_t> sizes[] = {
      {"layers", 4},
      {"hidden", kHidden},
      {"heads", kHeads},
      {"kv_heads", kHeads / 2},
      {"head_dim", kHeadDim},
      {"ffn_hidden", kHidden * 5 / 2},
      {"vocab", 503}};
  Table small{{"use", *tree.find_path("model.use")}, {"seq_length", kSeq}}; // --set may change it
  for (const auto& [field, size] : sizes) {
    if (model.find(field) != nullptr) {
      small.set(field, size);
    }
  }
  if (const int64_t experts = integer(tree, "model.experts"); experts > 0) {
    small.set("experts", std::min(experts, kFewExperts));
  }
  add_own_sizes(small, *tree.find("model"), &architecture, /*uneven=*/true);
  return layer_of(
      "check",
      Table{
          {"model", std::move(small)},
          {"parallel", one_rank(shared_schema("parallel", plugins.known(Kind::strategy)))},
          {"precision", "fp32"},
          {"batch", Table{{"global", 8}, {"micro", 1}}},
          {"data", Table{{"use", "mock"}}},
          {"tokenizer", Table{{"use", usual("tokenizer")}}},
          {"lr_schedule", Table{{"use", "constant"}}},
          {"train", Table{{"eval_interval", 0}}},
          {"device", recipe_schema().find("device")->default_value}}
  );
}

/// The lengths of the recipe's schedule in a run of `length`.
Table scaled_schedule(const Value& tree, const PluginLookup& plugins, int64_t length) {
  const Value* section = tree.find("lr_schedule");
  const Value* use = tree.find_path("lr_schedule.use");
  const auto* schedule = use != nullptr && use->is_string()
                             ? plugins.find(Kind::lr_schedule, use->as_string())
                             : nullptr;
  return schedule != nullptr && schedule->scaled ? schedule->scaled(*section, {.length = length})
                                                 : Table();
}

Table scaled_model(
    const Value& model, const Registry::Entry* architecture, const ScaleLimits& limits
) {
  Table small = scale_model(Table{{"model", model}}, limits);
  add_own_sizes(small, model, architecture, /*uneven=*/false);
  return small;
}

Layer scale_recipe(
    const Value& tree, const PluginLookup& plugins, int64_t ranks, const ScaleLimits& limits
) {
  const Schema parallel = shared_schema("parallel", plugins.known(Kind::strategy));
  const Value* name = tree.find("name");
  int64_t global = std::min(integer(tree, "batch.global"), limits.global_batch);
  Table layout = scaled_layout(tree, parallel, ranks, global, limits);
  const int64_t micro =
      ranks > 1 ? 1 : std::gcd(global, std::min<int64_t>(4, integer(tree, "batch.micro") * 4));
  Table train{
      {"eval_iters", 2},
      {"eval_interval", std::min(integer(tree, "train.eval_interval"), limits.iters / 2)}};
  const bool by_samples = tree.find_path("train.samples") != nullptr;
  const int64_t most = by_samples ? limits.iters * global : limits.iters;
  const int64_t length = std::min(most, limits.length.value_or(most));
  train.set(by_samples ? "samples" : "iters", length);
  Table batch{{"global", global}, {"micro", micro}};
  if (tree.find_path("batch.rampup_start") != nullptr) { // full from the start
    batch.set("rampup_start", global);
    batch.set("rampup_increment", 1);
    batch.set("rampup_samples", 1);
  }
  Value layer = Table{
      {"name", (name && name->is_string() ? name->as_string() : "recipe") + "-scaled"},
      {"model", scaled_model(*tree.find("model"), architecture_of(tree, plugins), limits)},
      {"parallel", std::move(layout)},
      {"precision", "auto"},
      {"batch", std::move(batch)},
      {"data", Table{{"use", "mock"}}},
      {"tokenizer", Table{{"use", usual("tokenizer")}}},
      {"train", std::move(train)},
      {"lr_schedule", scaled_schedule(tree, plugins, length)},
      {"checkpoint", Table{{"dir", ""}, {"interval", 0}}},
      {"run_dir", Value()}, // checkpoints are in its run folder
      {"log", Table{{"interval", 1}}},
      {"device", recipe_schema().find("device")->default_value},
  };
  return layer_of("--scale", std::move(layer));
}

} // namespace mh
