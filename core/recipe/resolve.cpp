#include "core/recipe/resolve.hpp"

#include "core/recipe/paths.hpp"
#include "core/recipe/problem.hpp"
#include "core/recipe/sections.hpp"
#include "core/recipe/sweep.hpp"
#include "core/recipe/terms.hpp"
#include "core/recipe/text.hpp"

#include <algorithm>

namespace mh {

namespace {

class Resolver {
public:
  Resolver(const Loaded& loaded, const SchemaLookup& lookup, const Facts& facts)
      : loaded_(loaded)
      , lookup_(lookup)
      , facts_(facts) {}

  Resolved run() {
    top_level();
    for (const std::string& name : section_names()) {
      const PluginSectionInfo* info = plugin_section(name);
      tree_.as_table().set(name, info ? plugin_part(*info) : core_part(name));
      if (const auto* entry = loaded_.merged.as_table().entry(name)) {
        tree_.as_table().find(name)->origin = entry->value.origin;
      }
    }
    move_sweep_last();
    for (const auto& [name, schema] : schemas_) {
      Value& part = name.empty() ? tree_ : *tree_.as_table().find(name);
      make_paths_absolute(schema, part.as_table());
    }
    check_names();
    fill_in();
    check_contradictions(tree_, facts_, problems_);
    drop_consequences();
    throw_problems(std::move(problems_));
    Resolved resolved{typed(), std::move(schemas_)};
    // Their fields are all there, and may have been taken away again by a higher layer.
    resolved.recipe.tree.as_table().erase("preset");
    resolved.recipe.tree.as_table().find("model")->as_table().erase("preset");
    resolved.recipe.tree.as_table().find("model")->as_table().erase("from");
    return resolved;
  }

private:
  void top_level() {
    Value top = complete(recipe_schema(), loaded_.merged, "", problems_);
    for (const std::string& name : section_names()) {
      top.as_table().erase(name);
    }
    if (const Value* sweep = top.find("sweep")) {
      check_sweep(*sweep);
    }
    tree_ = std::move(top);
    schemas_[""] = recipe_schema();
  }

  void check_sweep(const Value& sweep) {
    const size_t before = problems_.size();
    static_cast<void>(complete(sweep_schema(), sweep, "sweep", problems_));
    if (problems_.size() > before) {
      return;
    }
    try {
      static_cast<void>(count_points(sweep));
    } catch (const RecipeError& error) {
      problems_.insert(problems_.end(), error.problems().begin(), error.problems().end());
    }
  }

  void move_sweep_last() {
    if (const auto* entry = tree_.as_table().entry("sweep")) {
      const Table::Entry sweep = *entry;
      tree_.as_table().erase("sweep");
      tree_.as_table().set(sweep.key, sweep.value, sweep.key_origin);
    }
  }

  /// For what is missing: the recipe's file as a whole.
  SourcePtr recipe_source() const {
    const auto layer =
        std::find_if(loaded_.layers.begin(), loaded_.layers.end(), [](const Layer& layer) {
          return layer.name == "recipe";
        });
    return layer == loaded_.layers.end() ? nullptr : layer->tree.origin.source;
  }

  Value given(std::string_view section) const {
    const Table::Entry* entry = loaded_.merged.as_table().entry(section);
    if (!entry) {
      Value nothing;
      nothing.origin.source = recipe_source();
      return nothing;
    }
    Value value = entry->value;
    if (!value.origin.source) {
      value.origin = entry->key_origin;
    }
    return value;
  }

  Value core_part(const std::string& name) {
    schemas_[name] = core_schema(name);
    return complete(core_schema(name), given(name), name, problems_);
  }

  /// A section of core fields and the fields of the plugin that `use` names.
  Value plugin_part(const PluginSectionInfo& info) {
    const std::string name(info.name);
    Schema schema = core_schema(name);
    const Value section = given(name);
    const Value* use = section.find("use");
    const std::string plugin_name = use && use->is_string() ? use->as_string()
                                    : use                   ? ""
                                                            : std::string(info.default_use);
    const Schema* plugin = plugin_name.empty() ? nullptr : lookup_.find(info.kind, plugin_name);
    if (!plugin && !plugin_name.empty()) {
      unknown_plugin(info.kind, name + ".use", plugin_name, use ? use->origin : section.origin);
    }
    schema.fields.front().default_value = plugin_name.empty() ? Value() : Value(plugin_name);
    if (plugin) {
      schema = with_plugin(std::move(schema), *plugin);
      plugin_fields_[name] = plugin;
    }
    Value known = section;
    if (!plugin && known.is_table()) { // without its schema nothing is known of a plugin's fields
      Table core;
      for (const auto& entry : section.as_table()) {
        if (schema.find(entry.key)) {
          core.set(entry.key, entry.value, entry.key_origin);
        }
      }
      known = core;
      known.origin = section.origin;
    }
    schemas_[name] = schema;
    return complete(schema, known, name, problems_);
  }

  void
  unknown_plugin(Kind kind, const std::string& key, const std::string& name, const Origin& at) {
    std::vector<std::string> names = lookup_.names(kind);
    std::sort(names.begin(), names.end());
    const auto meant = word_meant(name, names);
    problems_.push_back(
        {at,
         key,
         key + " is " + to_text(name) + ", expected the name of a plugin of kind " +
             std::string(mh::info(kind).name),
         meant ? "did you mean `" + *meant + "`?" : "",
         "found: " + (names.empty() ? "none" : join(names)) + "   (megahost plugins)"}
    );
  }

  /// Words that name a plugin although they are no section.
  void check_names() {
    const auto check = [this](const char* path, Kind kind, std::initializer_list<const char*> own) {
      const Value* word = tree_.find_path(path);
      const bool known = !word || std::any_of(own.begin(), own.end(), [word](const char* name) {
        return word->as_string() == name;
      });
      if (!known && !lookup_.find(kind, word->as_string())) {
        std::vector<std::string> names = lookup_.names(kind);
        names.insert(names.end(), own.begin(), own.end());
        std::sort(names.begin(), names.end());
        names.erase(std::unique(names.begin(), names.end()), names.end());
        const auto meant = word_meant(word->as_string(), names);
        problems_.push_back(
            {word->origin,
             path,
             std::string(path) + " is " + to_text(*word) + ", expected " + alternatives(names),
             meant ? "did you mean `" + *meant + "`?" : "",
             ""}
        );
      }
    };
    check("device", Kind::device, {"cpu", "cuda"});
    check("parallel.schedule", Kind::pipeline_schedule, {"1f1b"});
  }

  /// Defaults that depend on other values, and facts of the machine.
  void fill_in() {
    Table& top = tree_.as_table();
    if (top.find("name")->as_string().empty()) {
      top.set("name", std::filesystem::path(loaded_.file).stem().string());
    }
    if (top.find("precision")->as_string() == "auto") {
      const bool bf16 = facts_.bf16 || top.find("device")->as_string() != "cpu";
      Value precision = bf16 ? "bf16" : "fp32";
      precision.origin.source =
          std::make_shared<const Source>(Source{"this machine", "", "machine"});
      top.set("precision", precision);
    }
    Table& checkpoint = top.find("checkpoint")->as_table();
    if (checkpoint.find("dir")->as_string().empty()) {
      checkpoint.set("dir", "runs/" + top.find("name")->as_string());
    }
    Table& batch = top.find("batch")->as_table();
    if (!loaded_.merged.find_path("batch.global")) {
      batch.set("global", batch.find("micro")->as_integer() * data_degree());
    }
  }

  /// Whatever else is wrong with the recipe.
  int64_t data_degree() const {
    const auto degree = [this](const char* axis) {
      const Value* value = tree_.find("parallel")->find(axis);
      return value && value->is_integer() ? value->as_integer() : 0;
    };
    Recipe::Parallel parallel;
    parallel.tensor = std::max<int64_t>(1, degree("tensor"));
    parallel.pipeline = std::max<int64_t>(1, degree("pipeline"));
    parallel.context = std::max<int64_t>(1, degree("context"));
    if (const int64_t given = degree("data"); given > 0) {
      parallel.data = given;
    }
    return parallel.data_degree(facts_.world);
  }

  /// A key that is missing because it has another program's name is one problem, not two.
  void drop_consequences() {
    std::vector<std::string> meant;
    for (const Problem& problem : problems_) {
      const auto [section, name] = split_key(problem.key);
      const auto schema = schemas_.find(section);
      const bool unknown = schema == schemas_.end() || !schema->second.find(name);
      if (const auto meaning = meaning_of(problem.key); unknown && meaning) {
        meant.push_back(meaning->key);
      }
    }
    std::erase_if(problems_, [&](const Problem& problem) {
      return !loaded_.merged.find_path(problem.key) &&
             std::find(meant.begin(), meant.end(), problem.key) != meant.end();
    });
  }

  Value options(const std::string& section) const {
    Table result;
    const auto plugin = plugin_fields_.find(section);
    for (const auto& entry : tree_.find(section)->as_table()) {
      if (plugin != plugin_fields_.end() && plugin->second->find(entry.key)) {
        result.set(entry.key, entry.value, entry.key_origin);
      }
    }
    Value value(std::move(result));
    value.origin = tree_.find(section)->origin;
    return value;
  }

  /// The core's fields of a section, read into their struct.
  template <class T>
  T read_core(const Fields<T>& fields, const std::string& section) const {
    Table core;
    for (const Field& field : fields.schema().fields) {
      if (const Value* value = tree_.find(section)->find(field.name)) {
        core.set(field.name, *value);
      }
    }
    return fields.read(core, section);
  }

  PluginSection plugin_section_of(const std::string& name) const {
    return {tree_.find(name)->find("use")->as_string(), options(name)};
  }

  Recipe typed() const {
    Recipe recipe;
    recipe.name = tree_.find("name")->as_string();
    recipe.precision = tree_.find("precision")->as_string();
    recipe.device = tree_.find("device")->as_string();
    recipe.plugins = loaded_.plugins();
    if (const Value* sweep = tree_.find("sweep")) {
      recipe.sweep = *sweep;
    }
    recipe.model = read_core(model_fields(), "model");
    recipe.model.options = options("model");
    recipe.optimizer = read_core(optimizer_fields(), "optimizer");
    recipe.optimizer.options = options("optimizer");
    recipe.data = read_core(data_fields(), "data");
    recipe.data.options = options("data");
    recipe.recompute = plugin_section_of("recompute");
    recipe.lr_schedule = read_core(lr_schedule_fields(), "lr_schedule");
    recipe.lr_schedule.options = options("lr_schedule");
    recipe.tokenizer = plugin_section_of("tokenizer");
    recipe.parallel = read_core(parallel_fields(), "parallel");
    recipe.batch = read_core(batch_fields(), "batch");
    recipe.train = read_core(train_fields(), "train");
    recipe.fp16 = read_core(fp16_fields(), "fp16");
    recipe.fp8 = read_core(fp8_fields(), "fp8");
    recipe.guards = read_core(guards_fields(), "guards");
    recipe.checkpoint = read_core(checkpoint_fields(), "checkpoint");
    recipe.comm = read_core(comm_fields(), "comm");
    recipe.log = read_core(log_fields(), "log");
    recipe.tree = tree_;
    return recipe;
  }

  const Loaded& loaded_;
  const SchemaLookup& lookup_;
  const Facts& facts_;
  std::vector<Problem> problems_;
  std::map<std::string, Schema> schemas_;
  std::map<std::string, const Schema*> plugin_fields_;
  Value tree_;
};

} // namespace

Resolved resolve(const Loaded& loaded, const SchemaLookup& lookup, const Facts& facts) {
  return Resolver(loaded, lookup, facts).run();
}

} // namespace mh
