#include "core/recipe/resolve.hpp"

#include "core/base/text.hpp"
#include "core/language/problem.hpp"
#include "core/recipe/layouts.hpp"
#include "core/recipe/paths.hpp"
#include "core/recipe/sweep.hpp"
#include "core/schema/sections.hpp"
#include "core/schema/terms.hpp"

#include <algorithm>
#include <set>

namespace mh {

namespace {

class Resolver {
public:
  Resolver(const Loaded& loaded, const PluginLookup& lookup, const Facts& facts)
      : loaded_(loaded)
      , lookup_(lookup)
      , facts_(facts) {}

  Resolved run() {
    know_strategies();
    top_level();
    for (const std::string& name : section_names()) {
      const PluginSectionInfo* info = plugin_section(name);
      tree_.as_table().set(name, info ? plugin_part(*info) : core_part(name));
      if (const auto* entry = loaded_.merged.as_table().entry(name)) {
        tree_.as_table().find(name)->origin = entry->value.origin;
      }
    }
    move_sweep_last();
    named_plugin(recipe_schema(), "", tree_);
    named_plugin(known_.at("parallel"), "parallel", *tree_.as_table().find("parallel"));
    make_named_absolute();
    fill_in();
    check_conditions();
    drop_consequences();
    throw_problems(std::move(problems_));
    Resolved resolved{typed(), std::move(schemas_)};
    // Their fields are all there, and may have been taken away again by a higher layer.
    resolved.recipe.tree.as_table().erase("preset");
    resolved.recipe.tree.as_table().find("model")->as_table().erase("preset");
    resolved.recipe.tree.as_table().find("model")->as_table().erase("from");
    return resolved;
  }

  std::optional<PluginSection> launcher() {
    const Schema key{
        {*recipe_schema().find(kKinds[static_cast<size_t>(Kind::launcher)].section)}, {}};
    known_ = core_schemas();
    Table given;
    if (const auto* entry = loaded_.merged.as_table().entry(key.fields.front().name)) {
      given.set(entry->key, entry->value, entry->key_origin);
    }
    tree_ = complete(key, given, "", problems_, known_);
    named_plugin(key, "", tree_);
    make_named_absolute();
    throw_problems(std::move(problems_));
    const Value* value = tree_.find(key.fields.front().name);
    return value != nullptr ? std::optional(plugin_named(*value)) : std::nullopt;
  }

private:
  /// Strategies share the section `parallel`: all that are found, and those that the recipe names.
  void know_strategies() {
    strategies_ = lookup_.known(Kind::strategy);
    const Value* named = loaded_.merged.find_path("parallel.strategies");
    std::set<const Registry::Entry*> before;
    for (const Value& name : named && named->is_array() ? named->as_array() : Value::Array()) {
      const Registry::Entry* entry =
          name.is_string() ? lookup_.find(Kind::strategy, name.as_string()) : nullptr;
      const Origin origin = name.origin.source ? name.origin : named->origin;
      if (entry != nullptr && !before.insert(entry).second) {
        problems_.push_back(
            {origin,
             "parallel.strategies",
             "parallel.strategies names " + name.as_string() + " twice",
             "",
             "each strategy is in force once"}
        );
      } else if (entry == nullptr && name.is_string()) {
        unknown_plugin(
            Kind::strategy,
            "parallel.strategies",
            "parallel.strategies holds",
            name.as_string(),
            origin
        );
      } else if (entry != nullptr && std::find(strategies_.begin(), strategies_.end(), entry) == strategies_.end()) {
        strategies_.push_back(entry);
      }
    }
    strategies_ = in_order(std::move(strategies_));
    known_ = section_schemas(strategies_);
  }

  void top_level() {
    Value top = complete(recipe_schema(), loaded_.merged, "", problems_, known_);
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

  /// The place of what is missing: the recipe's file as a whole.
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
    schemas_[name] = known_.at(name);
    return complete(schemas_[name], given(name), name, problems_, known_);
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
    const Registry::Entry* entry =
        plugin_name.empty() ? nullptr : lookup_.find(info.kind, plugin_name);
    const Schema* plugin = entry ? &entry->schema : nullptr;
    if (!plugin && !plugin_name.empty()) {
      const std::string key = name + ".use";
      unknown_plugin(info.kind, key, key + " is", plugin_name, use ? use->origin : section.origin);
    }
    schema.fields.front().default_value = plugin_name.empty() ? Value() : Value(plugin_name);
    if (plugin) {
      schema = with_parts(with_plugin(std::move(schema), *plugin));
      plugin_fields_[name] = plugin;
      used_.push_back(entry);
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
    const size_t before = problems_.size();
    Value part = complete(schema, known, name, problems_, known_);
    for (size_t i = before; i < problems_.size(); ++i) {
      name_owners(info, schema, problems_[i]);
    }
    return part;
  }

  /// If it is about an option that other plugins of the section take, it names them.
  void name_owners(const PluginSectionInfo& info, const Schema& schema, Problem& ret_problem) {
    const auto [section, option] = split_key(ret_problem.key);
    if (section != info.name || schema.find(option) != nullptr) {
      return;
    }
    std::vector<std::string> owners;
    for (const Registry::Entry* entry : lookup_.known(info.kind)) {
      if (const Field* field = entry->schema.find(option)) {
        owners.push_back("`" + entry->name + "`");
        ret_problem.note = ret_problem.key + ": " + field->doc;
      }
    }
    if (!owners.empty()) {
      ret_problem.label = "an option where " + section + ".use is " + join(owners, " or ");
    }
  }

  /// The choices of a field of parts, closed: the recipe's architecture declares the others.
  [[nodiscard]] Schema with_parts(Schema schema) const {
    const Value* use = loaded_.merged.find_path("model.use");
    const auto* model = use != nullptr && use->is_string()
                            ? lookup_.find(Kind::architecture, use->as_string())
                            : nullptr;
    for (Field& field : schema.fields) {
      if (field.parts && model != nullptr) {
        const auto& own = model->recompute_parts;
        field.choices.insert(field.choices.end(), own.begin(), own.end());
      }
      field.parts = false;
    }
    return schema;
  }

  /// `says`: the sentence up to the name.
  void unknown_plugin(
      Kind kind,
      const std::string& key,
      const std::string& says,
      const std::string& name,
      const Origin& at
  ) {
    std::vector<std::string> names = lookup_.names(kind);
    std::sort(names.begin(), names.end());
    names.erase(std::unique(names.begin(), names.end()), names.end());
    const auto meant = word_meant(name, names);
    problems_.push_back(
        {at,
         key,
         says + " " + to_text(name) + ", expected the name of a plugin of kind " +
             std::string(mh::info(kind).name),
         meant ? "did you mean `" + *meant + "`?" : "",
         "found: " + (names.empty() ? "none" : join(names)) + "   (megahost plugins)"}
    );
  }

  /// Keys whose value is a plugin: the plugin is there, and takes its options.
  void named_plugin(const Schema& schema, const std::string& section, Value& ret_part) {
    for (const Field& field : schema.fields) {
      Value* value = field.names ? ret_part.as_table().find(field.name) : nullptr;
      if (value == nullptr) {
        continue;
      }
      const std::string path = section.empty() ? field.name : section + "." + field.name;
      if (value->is_table() && !value->find("use")) {
        if (field.default_value.is_null()) {
          problems_.push_back(
              {value->origin,
               path,
               path + " has options, but no `use`",
               "",
               path + ": " + field.doc}
          );
          ret_part.as_table().erase(field.name);
          continue;
        }
        value->as_table().set("use", field.default_value);
      }
      const Value& name = value->is_table() ? *value->find("use") : *value;
      const Registry::Entry* entry = lookup_.find(*field.names, name.as_string());
      if (entry != nullptr) {
        used_.push_back(entry);
      } else if (!(name == field.default_value)) {
        unknown_plugin(*field.names, path, path + " is", name.as_string(), name.origin);
      }
      if (entry != nullptr) {
        Field use;
        use.name = "use";
        use.doc = field.doc;
        use.type = FieldType::string;
        use.default_value = name;
        Schema whole = with_plugin(Schema{{use}, {}}, entry->schema);
        Value given = value->is_table() ? *value : Value(Table{{"use", name}});
        given.origin = value->origin;
        Value all = complete(whole, given, path, problems_, known_);
        if (value->is_table()) {
          *value = std::move(all);
          schemas_[path] = std::move(whole);
        }
      }
    }
  }

  void make_named_absolute() {
    for (const auto& [name, schema] : schemas_) {
      Value& part = name.empty() ? tree_ : *path_in(tree_, name);
      const auto checked = [this](const Value& path, const Field&) {
        check_scheme(path);
        return absolute_path(path);
      };
      change_paths(schema, checked, part.as_table());
    }
  }

  /// A path NAME://... lies in the storage of that name.
  void check_scheme(const Value& path) {
    const auto scheme = path.is_string() ? scheme_of(path.as_string()) : std::nullopt;
    const std::vector<std::string> names =
        scheme ? lookup_.names(Kind::storage) : std::vector<std::string>();
    if (scheme && std::find(names.begin(), names.end(), *scheme) == names.end()) {
      const std::string says = "storage of " + to_text(path) + " is";
      unknown_plugin(Kind::storage, "storage", says, std::string(*scheme), path.origin);
    }
  }

  /// A section, or a table within it.
  static Value* path_in(Value& tree, const std::string& path) {
    const size_t dot = path.find('.');
    Value* section = tree.as_table().find(path.substr(0, dot));
    return dot == std::string::npos ? section : section->as_table().find(path.substr(dot + 1));
  }

  /// Adds the problems that the core and the plugins find in the whole recipe.
  void check_conditions() {
    const std::vector<Problem> before = problems_; // what one refuses hides nothing of another
    check_contradictions(tree_, facts_, known_, problems_);
    SectionSchemas schemas = known_;
    schemas["model"] = schemas_["model"]; // with the architecture's fields
    std::vector<const Registry::Entry*> all = used_;
    all.insert(all.end(), strategies_.begin(), strategies_.end());
    const bool recomputes_blocks = std::any_of(used_.begin(), used_.end(), [](const auto* entry) {
      return entry->recomputes_blocks;
    });
    for (const Registry::Entry* entry : all) {
      if (entry->conditions || entry->kind == Kind::checkpoint_format) {
        std::vector<Problem> more = before;
        Conditions conditions(tree_, facts_, schemas, more, recomputes_blocks);
        if (entry->kind == Kind::checkpoint_format) {
          require_writing(*entry, conditions);
        }
        if (entry->conditions) {
          entry->conditions(conditions);
        }
        problems_.insert(
            problems_.end(), more.begin() + static_cast<ptrdiff_t>(before.size()), more.end()
        );
      }
    }
  }

  static void require_writing(const Registry::Entry& format, Conditions& ret_conditions) {
    if (ret_conditions.facts().trains && !format.writes &&
        ret_conditions.sound({"checkpoint.use"})) {
      ret_conditions.report(
          {"checkpoint.use"},
          "checkpoint.use is " + to_text(ret_conditions.word("checkpoint.use")) +
              ", a format that is only read",
          "--weights reads such a folder whatever a run is saved in"
      );
    }
  }

  /// Defaults that depend on other values, and facts of the machine.
  void fill_in() {
    Table& top = tree_.as_table();
    if (top.find("name")->as_string().empty()) {
      top.set("name", std::filesystem::path(loaded_.file).stem().string());
    }
    if (top.find("precision")->as_string() == "auto") {
      const auto* device = lookup_.find(Kind::device, plugin_named(*top.find("device")).use);
      const bool bf16 = facts_.bf16 || (device != nullptr && device->planned.bf16);
      Value precision = bf16 ? "bf16" : "fp32";
      precision.origin.source =
          std::make_shared<const Source>(Source{"this machine", "", "machine"});
      top.set("precision", precision);
    }
    if (const Value* run = top.find("run_dir"); run && scheme_of(run->as_string())) {
      problems_.push_back(
          {run->origin,
           "run_dir",
           "run_dir is " + to_text(*run) + ", expected a folder of this machine",
           "",
           "recipe, log and metrics are files; checkpoint.dir may lie in a store"}
      );
    }
    Table& batch = top.find("batch")->as_table();
    if (!loaded_.merged.find_path("batch.global")) {
      batch.set("global", batch.find("micro")->as_integer() * data_degree());
    }
  }

  /// Whatever else is wrong with the recipe.
  int64_t data_degree() const {
    std::vector<Problem> none;
    return Conditions(tree_, facts_, known_, none).degree(MeshAxis::dp);
  }

  /// A key that is missing because it has another program's name is one problem, not two.
  void drop_consequences() {
    std::vector<std::string> meant;
    for (const Problem& problem : problems_) {
      const auto [section, name] = split_key(problem.key);
      const auto schema = schemas_.find(section);
      const bool unknown = schema == schemas_.end() || !schema->second.find(name);
      if (const auto meaning = meaning_of(problem.key, known_); unknown && meaning) {
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
    return fields.read_complete(core);
  }

  PluginSection plugin_section_of(const std::string& name) const {
    return {tree_.find(name)->find("use")->as_string(), options(name)};
  }

  Recipe::Parallel parallel() const {
    using Parallel = Recipe::Parallel;
    Parallel parallel = read_core(parallel_fields(), "parallel");
    const Value& section = *tree_.find("parallel");
    static const std::map<MeshAxis, int64_t Parallel::*> kDegrees{
        {MeshAxis::tp, &Parallel::tensor},
        {MeshAxis::pp, &Parallel::pipeline},
        {MeshAxis::cp, &Parallel::context},
        {MeshAxis::ep, &Parallel::expert},
        {MeshAxis::etp, &Parallel::expert_tensor}};
    for (const Field& field : schemas_.at("parallel").fields) {
      const Value* value = section.find(field.name);
      const auto degree = field.degree ? kDegrees.find(*field.along) : kDegrees.end();
      if (degree != kDegrees.end() && value->as_integer() > 1) {
        parallel.*degree->second = value->as_integer();
        parallel.degrees[*field.along] = field.name;
      } else if (field.degree) {
        parallel.degrees.emplace(*field.along, field.name);
      }
      if (value != nullptr) {
        read_mechanism(field.mechanism, *value, parallel);
      }
    }
    for (const Registry::Entry* strategy : strategies_) {
      if (is_named(section, *strategy) || strategy->in_force(section)) {
        parallel.strategies.push_back(strategy->name);
      }
    }
    return parallel;
  }

  static void
  read_mechanism(Mechanism mechanism, const Value& value, Recipe::Parallel& ret_parallel) {
    switch (mechanism) {
    case Mechanism::none:
      break;
    case Mechanism::sequence:
      ret_parallel.sequence = value.as_boolean();
      break;
    case Mechanism::zero:
      ret_parallel.zero = value.as_integer();
      break;
    case Mechanism::schedule:
      ret_parallel.schedule = plugin_named(value);
      break;
    case Mechanism::virtual_stages:
      ret_parallel.virtual_stages = value.as_integer();
      break;
    case Mechanism::pipeline_layout:
      ret_parallel.pipeline_layout = value.as_string();
      break;
    }
  }

  Recipe typed() const {
    Recipe recipe;
    recipe.name = tree_.find("name")->as_string();
    recipe.precision = tree_.find("precision")->as_string();
    recipe.device = plugin_named(*tree_.find("device"));
    if (const Value* launcher = tree_.find("launcher")) {
      recipe.launcher = plugin_named(*launcher);
    }
    if (const Value* storage = tree_.find("storage")) {
      recipe.storage = plugin_named(*storage);
    }
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
    recipe.parallel = parallel();
    recipe.batch = read_core(batch_fields(), "batch");
    recipe.train = read_core(train_fields(), "train");
    recipe.fp16 = read_core(fp16_fields(), "fp16");
    recipe.fp8 = read_core(fp8_fields(), "fp8");
    recipe.guards = read_core(guards_fields(), "guards");
    recipe.checkpoint = read_core(checkpoint_fields(), "checkpoint");
    recipe.checkpoint.options = options("checkpoint");
    RunPlaces places = run_places(tree_);
    recipe.checkpoint.dir = std::move(places.checkpoints);
    recipe.run_dir = std::move(places.run);
    recipe.load = read_core(load_fields(), "load");
    recipe.load.from = seen_from_here(recipe.load.from);
    recipe.comm = read_core(comm_fields(), "comm");
    recipe.log = read_core(log_fields(), "log");
    recipe.tree = tree_;
    return recipe;
  }

  const Loaded& loaded_;
  const PluginLookup& lookup_;
  const Facts& facts_;
  std::vector<Problem> problems_;
  SectionSchemas schemas_;
  SectionSchemas known_; ///< sections with what strategies declare
  std::vector<const Registry::Entry*> strategies_, used_;
  std::map<std::string, const Schema*> plugin_fields_;
  Value tree_;
};

} // namespace

std::optional<PluginSection> resolve_launcher(const Loaded& loaded, const PluginLookup& lookup) {
  return Resolver(loaded, lookup, Facts{}).launcher();
}

Resolved resolve(const Loaded& loaded, const PluginLookup& lookup, const Facts& facts) {
  return Resolver(loaded, lookup, facts).run();
}

} // namespace mh
