#include "core/recipe/sections.hpp"

#include "core/recipe/pipeline_layout.hpp"
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
    f.add("plugins", &TopLevel::plugins, "shared libraries with plugins from outside the tree");
    f.add(
         "precision",
         &TopLevel::precision,
         "number format of weights and activations; auto: bf16 "
         "where the hardware multiplies it, else fp32"
    )
        .one_of({"auto", "fp32", "bf16", "fp16", "fp8"});
    f.add("device", &TopLevel::device, "where tensors live: cpu, cuda or a device plugin's name");
    f.add("sweep", &TopLevel::sweep, "a family of recipes: a table of grid, zip, list, random");
    return f;
  }();
  return fields;
}

const Fields<Recipe::Parallel>& parallel_fields() {
  using Parallel = Recipe::Parallel;
  static const Fields<Parallel> fields = [] {
    Fields<Parallel> f;
    f.add("tensor", &Parallel::tensor, "tensor-parallel degree").at_least(1);
    f.add("sequence", &Parallel::sequence, "split the sequence between tensor-parallel regions");
    f.add("pipeline", &Parallel::pipeline, "pipeline stages").at_least(1);
    f.add("context", &Parallel::context, "context-parallel degree").at_least(1);
    f.add("expert", &Parallel::expert, "expert-parallel degree, over the ranks of a stage")
        .at_least(1);
    f.add("expert_tensor", &Parallel::expert_tensor, "tensor-parallel degree of experts")
        .at_least(1);
    f.add("data", &Parallel::data, "data-parallel degree; auto: as many as the ranks allow")
        .at_least(1)
        .one_of({"auto"});
    f.add(
         "zero",
         &Parallel::zero,
         "split over data-parallel ranks: 0 nothing, 1 optimizer state, 2 gradients too, 3 weights "
         "too, which each block gathers before it runs"
    )
        .range(0, 3);
    f.add("schedule", &Parallel::schedule, "pipeline schedule");
    f.add("virtual_stages", &Parallel::virtual_stages, "chunks of the model on each pipeline stage")
        .at_least(1);
    f.add(
         "context_method",
         &Parallel::context_method,
         "how attention reaches tokens of other context-parallel ranks: keys and values passed on "
         "in a ring, gathered, or heads exchanged for tokens (all_to_all, Ulysses)"
    )
        .one_of({"ring", "all_gather", "all_to_all"});
    f.add(
         "expert_dispatch",
         &Parallel::expert_dispatch,
         "how tokens reach experts of other ranks: each is sent to those it chose (all_to_all), or "
         "all are gathered"
    )
        .one_of({"all_to_all", "all_gather"});
    f.add(
        "pipeline_layout",
        &Parallel::pipeline_layout,
        "which layers lie in which chunk of the pipeline; balanced: by their cost, the head's "
        "counted; even: as many in each; or written out, such as embed+3|4|4|3+head"
    );
    f.check("pipeline_layout", [](const Parallel& p) -> std::string {
      if (is_layout_word(p.pipeline_layout)) {
        return "";
      }
      const auto chunks = parse_layout(p.pipeline_layout);
      if (!chunks) {
        return "\"" + p.pipeline_layout +
               "\" is no layout, expected balanced, even, or layers between bars from embed to "
               "head, such as \"embed+3|4|4|3+head\"";
      }
      const auto found = static_cast<int64_t>(chunks->size());
      const int64_t expected = p.pipeline * p.virtual_stages;
      return found == expected
                 ? ""
                 : "\"" + p.pipeline_layout + "\" has " + std::to_string(found) +
                       " chunks, expected parallel.pipeline " + std::to_string(p.pipeline) +
                       " times parallel.virtual_stages " + std::to_string(p.virtual_stages) +
                       " = " + std::to_string(expected);
    });
    f.add(
         "bucket_size",
         &Parallel::bucket_size,
         "gradients whose sum over ranks starts together, as soon as the backward pass has made "
         "them"
    )
        .at_least(1)
        .unit("elements");
    f.add("reduce_dtype", &Parallel::reduce_dtype, "format in which gradients travel to their sums")
        .one_of({"fp32", "bf16"});
    f.add(
        "overlap",
        &Parallel::overlap,
        "gradients are summed and weights fetched beside the passes; false: one after the other"
    );
    f.add("order", &Parallel::order, "mesh axes from the fastest to the slowest");
    f.check("order", [](const Parallel& p) -> std::string {
      std::vector<std::string> axes;
      for (size_t begin = 0; begin <= p.order.size();) {
        const size_t end = std::min(p.order.find('-', begin), p.order.size());
        axes.push_back(p.order.substr(begin, end - begin));
        begin = end + 1;
      }
      std::sort(axes.begin(), axes.end());
      return axes == std::vector<std::string>{"cp", "dp", "ep", "pp", "tp"}
                 ? ""
                 : "\"" + p.order +
                       "\" is no order of the mesh axes, expected each of tp, cp, ep, dp, pp "
                       "once, such as \"tp-cp-ep-dp-pp\"";
    });
    return f;
  }();
  return fields;
}

const Fields<Recipe::Batch>& batch_fields() {
  using Batch = Recipe::Batch;
  static const Fields<Batch> fields = [] {
    Fields<Batch> f;
    f.add("global", &Batch::global, "sequences per optimizer step").at_least(1).unit("sequences");
    f.add("micro", &Batch::micro, "sequences per forward pass of one rank")
        .at_least(1)
        .unit("sequences");
    f.add(
         "rampup_start",
         &Batch::rampup_start,
         "sequences of the first step, where the batch grows to global; absent: it does not"
    )
        .at_least(1)
        .unit("sequences");
    f.add("rampup_increment", &Batch::rampup_increment, "sequences that it grows by at a time")
        .at_least(1)
        .unit("sequences");
    f.add("rampup_samples", &Batch::rampup_samples, "sequences after which it is global")
        .at_least(1)
        .unit("sequences");
    f.check("rampup_start", [](const Batch& b) -> std::string {
      if (b.rampup_start.has_value() != b.rampup_increment.has_value() ||
          b.rampup_start.has_value() != b.rampup_samples.has_value()) {
        return "a batch grows by rampup_start, rampup_increment and rampup_samples: give all three";
      }
      if (b.rampup_start && *b.rampup_start > b.global) {
        return std::to_string(*b.rampup_start) + " is above batch.global " +
               std::to_string(b.global) + ", to which the batch grows";
      }
      if (b.rampup_start && (b.global - *b.rampup_start) % *b.rampup_increment != 0) {
        return "from " + std::to_string(*b.rampup_start) + " to batch.global " +
               std::to_string(b.global) + " is no multiple of rampup_increment " +
               std::to_string(*b.rampup_increment);
      }
      return "";
    });
    return f;
  }();
  return fields;
}

const Fields<Recipe::Train>& train_fields() {
  using Train = Recipe::Train;
  static const Fields<Train> fields = [] {
    Fields<Train> f;
    f.add("iters", &Train::iters, "length of the run in optimizer steps").at_least(1).unit("steps");
    f.add("samples", &Train::samples, "length of the run in sequences, instead of iters")
        .at_least(1)
        .unit("sequences");
    f.add("eval_interval", &Train::eval_interval, "steps between evaluations; 0 never evaluates")
        .at_least(0)
        .unit("steps");
    f.add("eval_iters", &Train::eval_iters, "global batches per evaluation").at_least(1);
    f.add("seed", &Train::seed, "of initial values, dropout and the order of samples").at_least(0);
    f.add("exit_minutes", &Train::exit_minutes, "save and stop after this time")
        .above(0)
        .unit("minutes");
    f.add(
         "exit_iters",
         &Train::exit_iters,
         "save and stop after this step; schedules keep their length"
    )
        .at_least(1)
        .unit("steps");
    f.add(
        "deterministic",
        &Train::deterministic,
        "only operations that give the same bits each time; others are refused"
    );
    return f;
  }();
  return fields;
}

const Fields<Recipe::Checkpoint>& checkpoint_fields() {
  using Checkpoint = Recipe::Checkpoint;
  static const Fields<Checkpoint> fields = [] {
    Fields<Checkpoint> f;
    f.add("dir", &Checkpoint::dir, "run folder; runs/NAME unless given");
    f.add("interval", &Checkpoint::interval, "steps between checkpoints; 0 saves at the end only")
        .at_least(0)
        .unit("steps");
    f.add("keep", &Checkpoint::keep, "newest checkpoints that stay; 0 keeps all").at_least(0);
    f.add("save_at_end", &Checkpoint::save_at_end, "save when the run ends");
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
    f.add("seq_length", &Model::seq_length, "tokens per sample").at_least(1).unit("tokens");
    return f;
  }();
  return fields;
}

const Fields<Recipe::Optimizer>& optimizer_fields() {
  using Optimizer = Recipe::Optimizer;
  static const Fields<Optimizer> fields = [] {
    Fields<Optimizer> f;
    f.add("use", &Optimizer::use, "optimizer plugin");
    f.add("lr", &Optimizer::lr, "learning rate, the schedule's highest").at_least(0);
    f.add("weight_decay", &Optimizer::weight_decay, "of matrices; norms and biases have none")
        .at_least(0);
    f.add(
         "weight_decay_schedule",
         &Optimizer::weight_decay_schedule,
         "how weight decay goes from weight_decay_start to weight_decay over the run"
    )
        .one_of({"constant", "linear", "cosine"});
    f.add(
         "weight_decay_start",
         &Optimizer::weight_decay_start,
         "weight decay of the first step, unless constant; 0 if absent"
    )
        .at_least(0);
    f.add("decay_vectors", &Optimizer::decay_vectors, "decay norms and biases, too");
    f.add("clip_grad", &Optimizer::clip_grad, "largest global gradient norm; 0 does not clip")
        .at_least(0);
    f.add(
        "groups",
        &Optimizer::groups,
        "parameters that are trained in another way, by name; what a later group says wins"
    );
    f.add(
        "master_weights",
        &Optimizer::master_weights,
        "keep float32 copies of bf16 weights; without them set stochastic_rounding, or small "
        "updates are lost"
    );
    f.add("state_dtype", &Optimizer::state_dtype, "number format of the optimizer's state")
        .one_of({"fp32", "bf16"});
    f.add(
        "stochastic_rounding",
        &Optimizer::stochastic_rounding,
        "round bf16 state, and bf16 weights without masters, up or down at random"
    );
    f.add(
        "offload",
        &Optimizer::offload,
        "keep state and master weights in host memory, and update there"
    );
    f.check("weight_decay_start", [](const Optimizer& o) -> std::string {
      return o.weight_decay_start && o.weight_decay_schedule == "constant"
                 ? "does nothing while weight_decay_schedule is \"constant\": set it to "
                   "\"linear\" or \"cosine\""
                 : "";
    });
    f.check("stochastic_rounding", [](const Optimizer& o) -> std::string {
      return o.stochastic_rounding && o.master_weights && o.state_dtype == "fp32"
                 ? "rounds nothing: set state_dtype to \"bf16\", or master_weights to false"
                 : "";
    });
    return f;
  }();
  return fields;
}

void Recipe::ParameterGroup::fields(Fields<ParameterGroup>& f) {
  f.add(
       "match",
       &ParameterGroup::match,
       "global names of the parameters, `*` stands for any characters: { \"*.attention.*\" }"
  )
      .required();
  f.add("lr_multiplier", &ParameterGroup::lr_multiplier, "factor of their learning rate")
      .at_least(0);
  f.add("decay_multiplier", &ParameterGroup::decay_multiplier, "factor of their weight decay")
      .at_least(0);
  f.add("frozen", &ParameterGroup::frozen, "keep them as they are: no gradients, no state");
}

const Fields<Recipe::LrSchedule>& lr_schedule_fields() {
  static const Fields<Recipe::LrSchedule> fields = [] {
    Fields<Recipe::LrSchedule> f;
    f.add("use", &Recipe::LrSchedule::use, "the plugin's name");
    f.add(
         "on_resume",
         &Recipe::LrSchedule::on_resume,
         "whose learning rates and weight decay a resumed run goes on with"
    )
        .one_of({"recipe", "checkpoint"});
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
    f.check("split", [](const Data& d) -> std::string {
      if (d.split.size() != 3) {
        return std::to_string(d.split.size()) +
               " shares, expected three: train, validation, test, such as 99, 1, 0";
      }
      return d.split[0] > 0
                 ? ""
                 : "the training share is 0, expected more: there is nothing to train on";
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

/// As the fields declare it.
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
    return parallel_fields().schema();
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

const Schema& core_schema(std::string_view section) {
  static const std::map<std::string, Schema, std::less<>> schemas = [] {
    std::map<std::string, Schema, std::less<>> schemas;
    for (const std::string& name : section_names()) {
      Schema& schema = schemas[name] = declared(name);
      const PluginSectionInfo* plugin = plugin_section(name);
      if (plugin && !plugin->default_use.empty()) {
        schema.fields.front().default_value = std::string(plugin->default_use);
      }
    }
    return schemas;
  }();
  const auto found = schemas.find(section);
  MH_ASSERT(found != schemas.end(), "no section " + std::string(section));
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
};

/// In the order in which a recipe is printed.
const std::vector<Section>& sections() {
  static const std::vector<Section> all{
      {"model", "the architecture and its sizes"},
      {"parallel", "the layout: how model and data are split over ranks"},
      {"recompute", "what the backward pass computes again instead of keeping it"},
      {"optimizer", "how gradients change the weights"},
      {"lr_schedule", "how the learning rate changes over the run"},
      {"batch", "sequences per optimizer step and per forward pass"},
      {"data", "the corpus, and its shares for training, validation and test"},
      {"tokenizer", "how text becomes tokens"},
      {"train", "length of the run, evaluation and seed"},
      {"fp16", "loss scaling of precision fp16"},
      {"fp8", "scales of precision fp8"},
      {"guards", "what happens when a step's loss or gradients are no good"},
      {"checkpoint", "where and how often the run is saved"},
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
           untyped("zip", "lists of values by key, walked side by side"),
           untyped("list", "a list of tables of values by key"),
           untyped("random", "values by key, drawn at random")},
      .checks = {}};
  return schema;
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
