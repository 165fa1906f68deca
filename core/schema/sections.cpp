#include "core/schema/sections.hpp"

#include "core/base/text.hpp"
#include "megahost/error.hpp"

#include <algorithm>
#include <functional>
#include <map>

namespace mh {

const PluginSectionInfo* plugin_section(std::string_view name) {
  const auto* found = std::find_if(
      kPluginSections.begin(),
      kPluginSections.end(),
      [name](const PluginSectionInfo& section) { return section.name == name; }
  );
  return found == kPluginSections.end() ? nullptr : found;
}

const Fields<TopLevel>& top_fields() {
  static const Fields<TopLevel> fields = [] {
    Fields<TopLevel> f;
    f.add("name", &TopLevel::name, "name of the run");
    f.add("plugins", &TopLevel::plugins, "shared libraries with plugins from outside the tree")
        .path();
    f.add(
         "precision",
         &TopLevel::precision,
         "number format of weights and activations; auto: bf16 "
         "where the hardware multiplies it, else fp32"
    )
        .one_of({"auto", "fp32", "bf16", "fp16", "fp8"})
        .must_stay();
    f.add("device", &TopLevel::device, "where tensors live: cpu, cuda or a device plugin's name")
        .names(Kind::device);
    f.add(
         "launcher",
         &TopLevel::launcher,
         "plugin that is asked for each process's rank, in place of all that are found; without one "
         "--nproc, torchrun, mpirun, PMI and srun are known"
    )
        .names(Kind::launcher);
    f.add(
         "storage",
         &TopLevel::storage,
         "storage plugin with options for paths that begin with its name, NAME://; one without "
         "options need not be named"
    )
        .names(Kind::storage);
    f.add(
         "run_dir",
         &TopLevel::run_dir,
         "folder of the run's recipe, log and metrics, where checkpoint.dir is another place"
    )
        .path();
    f.add("sweep", &TopLevel::sweep, "a family of recipes: a table of grid, zip, list, random");
    return f;
  }();
  return fields;
}

const Fields<Recipe::Checkpoint>& checkpoint_fields() {
  using Checkpoint = Recipe::Checkpoint;
  static const Fields<Checkpoint> fields = [] {
    Fields<Checkpoint> f;
    f.add("use", &Checkpoint::use, "format plugin that checkpoints are written with");
    f.add(
         "dir",
         &Checkpoint::dir,
         "where checkpoints are kept; it is the run folder, too, unless run_dir names one; "
         "runs/NAME in the working directory unless given"
    )
        .path();
    f.add(
        "auto",
        &Checkpoint::automatic,
        "a start goes on from what lies in `dir`: from the run's newest checkpoint, as with "
        "--resume=auto; else with the weights of another program's, of whatever format; else anew"
    );
    f.add("interval", &Checkpoint::interval, "steps between checkpoints; 0 saves at the end only")
        .at_least(0)
        .unit("steps");
    f.add("keep", &Checkpoint::keep, "newest checkpoints that stay; 0 keeps all").at_least(0);
    f.add(
         "keep_every",
         &Checkpoint::keep_every,
         "checkpoints of steps that this divides stay in addition to the newest; 0: none do"
    )
        .at_least(0)
        .unit("steps");
    f.add(
         "keep_best",
         &Checkpoint::keep_best,
         "checkpoints with the lowest validation losses stay in addition, of those that were "
         "evaluated at their step; 0: none do"
    )
        .at_least(0);
    f.add(
         "keep_for",
         &Checkpoint::keep_for,
         "how long each checkpoint stays in addition to the newest; 0: none does"
    )
        .at_least(0)
        .unit("hours");
    f.add(
         "keep_per",
         &Checkpoint::keep_per,
         "the first checkpoint of each span of so many hours stays in addition to the newest; 0: "
         "none does"
    )
        .at_least(0)
        .unit("hours");
    f.add(
         "local_dir",
         &Checkpoint::local_dir,
         "folder on a disk of each node, or in its memory (/dev/shm), for frequent checkpoints; {node} "
         "in it is the node's number"
    )
        .path();
    f.add(
         "local_interval",
         &Checkpoint::local_interval,
         "steps between checkpoints in local_dir, of which the newest stays; a run goes on from it "
         "where it is newer than those in `dir`, and whole; 0: none"
    )
        .at_least(0)
        .unit("steps");
    f.add(
         "local_copies",
         &Checkpoint::local_copies,
         "other nodes that keep a copy of each node's part of a local checkpoint: so many nodes may "
         "lose theirs"
    )
        .at_least(0);
    f.check("local_interval", [](const Checkpoint& checkpoint) {
      return checkpoint.local_interval > 0 && checkpoint.local_dir.empty()
                 ? "checkpoints are asked for, and no local_dir for them"
                 : "";
    });
    f.add("save_at_end", &Checkpoint::save_at_end, "save when the run ends");
    f.add(
        "async",
        &Checkpoint::async,
        "steps go on while a checkpoint is written: each save takes a copy in host memory first; "
        "false: they wait until it is on the disk"
    );
    f.add(
         "if_busy",
         &Checkpoint::if_busy,
         "with async, what a save does while the one before is still being written"
    )
        .one_of({"wait", "skip"});
    return f;
  }();
  return fields;
}

namespace {

/// Empty, or a sentence on a value of `load.match` that is none.
std::string wrong_match(const std::map<std::string, Value>& match) {
  for (const auto& [pattern, value] : match) {
    if (!value.is_boolean() && !value.is_string()) {
      return to_text(pattern) + " is " + describe(value.type()) +
             ", expected a pattern of names in the checkpoint, true or false";
    }
    if (value.is_string() &&
        std::ranges::count(value.as_string(), '*') != std::ranges::count(pattern, '*')) {
      return to_text(pattern) + " is " + to_text(value) +
             ", expected as many * in it: each stands for the same characters";
    }
  }
  return "";
}

} // namespace

const Fields<Recipe::Load>& load_fields() {
  using Load = Recipe::Load;
  static const Fields<Load> fields = [] {
    Fields<Load> f;
    f.add(
         "from",
         &Load::from,
         "what a new run starts from: a run, or another program's weights (--weights); a run that "
         "goes on has its own checkpoints"
    )
        .path();
    f.add(
         "step", &Load::step, "its checkpoint of this step; else the newest that is whole (--step)"
    )
        .at_least(0)
        .unit("steps");
    f.add(
        "format",
        &Load::format,
        "format of `from`, where several know the folder (--weights-format)"
    );
    f.add(
        "optimizer",
        &Load::optimizer,
        "take the optimizer's state and its number of updates, too; false: it begins anew"
    );
    f.add(
        "progress",
        &Load::progress,
        "count steps on from the checkpoint's, and with them learning rate, loss scale and guards; "
        "false: from 0"
    );
    f.add(
        "rng", &Load::rng, "random numbers go on from the checkpoint's; false: the recipe's anew"
    );
    f.add("data", &Load::data, "data go on from the checkpoint's position; false: from the start");
    f.add(
        "strict",
        &Load::strict,
        "every tensor of the model must be in the checkpoint, and every one there must have its "
        "place; false: those that are in both are taken, the rest is said"
    );
    f.add(
        "match",
        &Load::match,
        "by pattern of names (* for any characters): the name in the checkpoint, true to take the "
        "same one, false to leave initial values; of several that fit the longest counts"
    );
    f.check("match", [](const Load& load) { return wrong_match(load.match); });
    f.check("from", [](const Load& load) {
      const bool asks = load.step || !load.format.empty() || load.optimizer || load.progress ||
                        load.rng || load.data || !load.strict || !load.match.empty();
      return load.from.empty() && asks ? "it is not given, and other keys of `load` are" : "";
    });
    return f;
  }();
  return fields;
}

const Fields<Recipe::Comm>& comm_fields() {
  using Comm = Recipe::Comm;
  static const Fields<Comm> fields = [] {
    Fields<Comm> f;
    f.add("timeout", &Comm::timeout, "how long a rank waits for the others before it gives up")
        .above(0)
        .unit("seconds");
    f.add(
         "hang_after",
         &Comm::hang_after,
         "how long nothing moves before the run names the rank that the others wait for; then it "
         "says so again after 3, 6, 12, ... times that; 0 never"
    )
        .at_least(0)
        .unit("seconds");
    return f;
  }();
  return fields;
}

const Fields<Recipe::Log>& log_fields() {
  using Log = Recipe::Log;
  static const Fields<Log> fields = [] {
    Fields<Log> f;
    f.add("interval", &Log::interval, "steps between lines").at_least(1).unit("steps");
    f.add("format", &Log::format, "form of a line").one_of({"line", "megatron", "json"});
    f.add("tensorboard", &Log::tensorboard, "event files for TensorBoard in the run folder");
    f.add("num_zeros", &Log::num_zeros, "counts the zeros among the gradients of each step");
    f.add("params_norm", &Log::params_norm, "L2 norm of the weights after each step");
    f.add(
        "progress",
        &Log::progress,
        "progress.txt in the run folder, as Megatron-LM's --log-progress: a line at each start and "
        "checkpoint with job, ranks, FLOPs, tokens and throughput so far"
    );
    return f;
  }();
  return fields;
}

const Fields<Recipe::Model>& model_fields() {
  using Model = Recipe::Model;
  static const Fields<Model> fields = [] {
    Fields<Model> f;
    f.add("use", &Model::use, "architecture plugin").required();
    f.add("preset", &Model::preset, "row of the model-size table that fills in the fields");
    f.add(
         "from",
         &Model::from,
         "Hugging Face folder, whose config.json fills in the fields; what the recipe itself says "
         "must agree"
    )
        .path();
    f.add("seq_length", &Model::seq_length, "tokens per sample").at_least(1).unit("tokens");
    return f;
  }();
  return fields;
}

const Fields<Recipe::Data>& data_fields() {
  using Data = Recipe::Data;
  static const Fields<Data> fields = [] {
    Fields<Data> f;
    f.add("use", &Data::use, "corpus plugin");
    f.add("split", &Data::split, "shares of train, validation and test").at_least(0);
    f.add("prefetch", &Data::prefetch, "steps whose samples are read ahead; 0 reads in the step")
        .range(0, 64)
        .may_change();
    f.add(
         "prefetch_threads",
         &Data::prefetch_threads,
         "threads that read ahead, a step each; one for each step of data.prefetch if absent"
    )
        .range(1, 64)
        .may_change();
    f.add(
         "cache",
         &Data::cache,
         "folder for copies of what corpus and tokenizer read of an object store; unless given "
         "$XDG_CACHE_HOME/megahost, or ~/.cache/megahost"
    )
        .path()
        .may_change();
    f.add(
         "cache_limit",
         &Data::cache_limit,
         "that the copies may take together: those used longest ago make room for others"
    )
        .above(0)
        .unit("GB")
        .may_change();
    f.check("cache", [](const Data& d) -> std::string {
      return d.cache && (d.cache->empty() || scheme_of(*d.cache))
                 ? "expected a folder of this machine"
                 : "";
    });
    f.check("split", [](const Data& d) -> std::string {
      if (d.split.size() != 3) {
        return std::to_string(d.split.size()) +
               " shares, expected three: train, validation, test, such as 99, 1, 0";
      }
      return d.split[0] + d.split[1] + d.split[2] > 0 ? ""
                                                      : "all shares are 0, expected data in one";
    });
    return f;
  }();
  return fields;
}

namespace {

struct OnlyUse {
  std::string use;
};

const Schema& use_schema() {
  static const Fields<OnlyUse> fields = [] {
    Fields<OnlyUse> f;
    f.add("use", &OnlyUse::use, "the plugin's name");
    return f;
  }();
  return fields.schema();
}

} // namespace

namespace {

/// The section as its fields declare it.
const Schema& declared(std::string_view section) {
  if (section == "model") {
    return model_fields().schema();
  }
  if (section == "optimizer") {
    return optimizer_fields().schema();
  }
  if (section == "lr_schedule") {
    return lr_schedule_fields().schema();
  }
  if (section == "data") {
    return data_fields().schema();
  }
  if (section == "parallel") {
    static const Schema schema = [] {
      Schema schema = parallel_fields().schema();
      schema.fields.push_back(strategies_field());
      schema.fields.push_back(elastic_field());
      return schema;
    }();
    return schema;
  }
  if (section == "batch") {
    return batch_fields().schema();
  }
  if (section == "train") {
    return train_fields().schema();
  }
  if (section == "fp16") {
    return fp16_fields().schema();
  }
  if (section == "fp8") {
    return fp8_fields().schema();
  }
  if (section == "guards") {
    return guards_fields().schema();
  }
  if (section == "checkpoint") {
    return checkpoint_fields().schema();
  }
  if (section == "load") {
    return load_fields().schema();
  }
  if (section == "comm") {
    return comm_fields().schema();
  }
  if (section == "log") {
    return log_fields().schema();
  }
  MH_ASSERT(plugin_section(section), "no section " + std::string(section));
  return use_schema();
}

} // namespace

const SectionSchemas& core_schemas() {
  static const SectionSchemas schemas = [] {
    SectionSchemas schemas;
    schemas[""] = recipe_schema();
    for (const std::string& name : section_names()) {
      Schema& schema = schemas[name] = declared(name);
      const PluginSectionInfo* plugin = plugin_section(name);
      if (plugin && !plugin->default_use.empty()) {
        schema.fields.front().default_value = std::string(plugin->default_use);
      }
    }
    return schemas;
  }();
  return schemas;
}

const Schema& core_schema(std::string_view section) {
  const auto found = core_schemas().find(section);
  MH_ASSERT(found != core_schemas().end(), "no section " + std::string(section));
  return found->second;
}

Schema with_plugin(Schema core, const Schema& plugin) {
  for (const Field& field : plugin.fields) {
    std::erase_if(core.fields, [&field](const Field& own) { return own.name == field.name; });
    core.fields.push_back(field);
  }
  core.checks.insert(core.checks.end(), plugin.checks.begin(), plugin.checks.end());
  return core;
}

namespace {

struct Section {
  std::string name;
  std::string doc;
  OnResume on_resume = OnResume::free; ///< rule of fields that do not state one
};

/// All sections in the order in which a recipe is printed.
const std::vector<Section>& sections() {
  static const std::vector<Section> all{
      {"model", "the architecture and its sizes", OnResume::same},
      {"parallel", "the layout: how model and data are split over ranks"},
      {"recompute",
       "activation checkpointing: what the backward pass recomputes instead of saving it"},
      {"optimizer", "how gradients change the weights", OnResume::same},
      {"lr_schedule", "how the learning rate changes over the run"},
      {"batch", "sequences per optimizer step and per forward pass", OnResume::same},
      {"data", "the corpus, and its shares for training, validation and test", OnResume::same},
      {"tokenizer", "how text becomes tokens", OnResume::same},
      {"train", "length of the run, evaluation and seed"},
      {"fp16", "loss scaling of precision fp16"},
      {"fp8", "scales of precision fp8", OnResume::same},
      {"guards", "what happens when a step's loss or gradients are no good"},
      {"checkpoint", "where and how often the run is saved"},
      {"load", "what a new run takes of a checkpoint: weights, and what else is named"},
      {"comm", "how the ranks talk to one another"},
      {"log", "how often and in which form progress is printed"},
  };
  return all;
}

Field untyped(const char* name, std::string doc) {
  Field field;
  field.name = name;
  field.doc = std::move(doc);
  return field;
}

} // namespace

const Schema& recipe_schema() {
  static const Schema schema = [] {
    Schema schema = top_fields().schema();
    for (const Section& section : sections()) {
      schema.fields.push_back(untyped(section.name.c_str(), section.doc));
    }
    schema.fields.push_back(
        untyped("extends", "recipe that this one starts from, or a list of them")
    );
    schema.fields.push_back(untyped(
        "preset", "layout preset and model preset that this recipe starts from: a name, or a list"
    ));
    return schema;
  }();
  return schema;
}

const Schema& sweep_schema() {
  static const Schema schema{
      .fields =
          {untyped("grid", "lists of values by key: each combination is a recipe"),
           untyped("zip", "lists of values by key, walked together"),
           untyped("list", "a list of tables of values by key"),
           untyped("random", "values by key, drawn at random")},
      .checks = {}};
  return schema;
}

std::vector<std::string> all_keys(const SectionSchemas& schemas) {
  std::vector<std::string> keys;
  for (const auto& [section, schema] : schemas) {
    for (const Field& field : schema.fields) {
      keys.push_back(section.empty() ? field.name : section + "." + field.name);
    }
  }
  return keys;
}

bool may_change_on_resume(std::string_view section, const Field& field) {
  OnResume rule = field.on_resume;
  if (rule == OnResume::as_section) {
    const auto found = std::find_if(sections().begin(), sections().end(), [&](const Section& one) {
      return one.name == section;
    });
    rule = found == sections().end() ? OnResume::free : found->on_resume;
  }
  return rule == OnResume::free;
}

std::string resume_rule(std::string_view section, const Schema& schema) {
  std::vector<std::string> free, same;
  for (const Field& field : schema.fields) {
    (may_change_on_resume(section, field) ? free : same).push_back(field.name);
  }
  if (free.empty()) {
    return "In a resumed run these values must be its checkpoint's.";
  }
  if (same.empty()) {
    return "A resumed run may change them.";
  }
  const bool few_free = free.size() < same.size();
  return "A resumed run may change " + (few_free ? join(free) : "all but " + join(same)) +
         (few_free ? "; the other values must be its checkpoint's." : ".");
}

std::string section_doc(std::string_view section) {
  const Field* field = recipe_schema().find(section);
  return field ? field->doc : "";
}

const std::vector<std::string>& section_names() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> names;
    for (const Section& section : sections()) {
      names.push_back(section.name);
    }
    return names;
  }();
  return names;
}

} // namespace mh
