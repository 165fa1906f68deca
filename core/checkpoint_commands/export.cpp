// megahost checkpoint export: a run's weights for other programs.

#include "core/base/number_text.hpp"
#include "core/base/text.hpp"
#include "core/base/visible.hpp"
#include "core/checkpoint/hf.hpp"
#include "core/checkpoint/hf_export.hpp"
#include "core/checkpoint_commands/commands.hpp"
#include "core/checkpoint_commands/megatron_state.hpp"
#include "core/checkpoint_commands/saved.hpp"
#include "core/foreign/megatron.hpp"
#include "core/foreign/xser.hpp"
#include "core/foreign/xser_names.hpp"
#include "core/formats/json.hpp"
#include "core/model/plugin_call.hpp"
#include "core/options/read.hpp"
#include "core/recipe/changes.hpp"
#include "core/recipe/load.hpp"
#include "core/session/run_tokenizer.hpp"
#include "core/storage/file_system.hpp"
#include "megahost/error.hpp"
#include "megahost/tokenizer.hpp"

#include <ATen/core/grad_mode.h>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <map>
#include <set>

namespace mh {

namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr uint64_t kLongestTokenizer = uint64_t{1} << 30;

/// The run folder in which a checkpoint lies; its own, where there is none.
fs::path run_of(const CheckpointReader& saved) {
  std::error_code ignored;
  for (fs::path folder = saved.path(); folder.has_relative_path(); folder = folder.parent_path()) {
    if (fs::exists(folder / "recipe.toml", ignored)) {
      return folder;
    }
  }
  return saved.path();
}

/// The model that a checkpoint's own recipe describes.
class SavedModel {
public:
  SavedModel(const CheckpointReader& saved, const Invocation& invocation, Host& host)
      : host_(host)
      , invocation_(invocation)
      , recipe_(recipe_of(saved))
      , entry_(host.require(Kind::architecture, text("model.use"))) {
    tokenizer_options_ = tokenizer_of_run(
        run_of(saved),
        tokenizer_entry().schema,
        options(*recipe_.find("tokenizer"), tokenizer_entry())
    );
    tokenizer_ = host.make<Tokenizer>(text("tokenizer.use"), tokenizer_options_);
    fields_ = options(*recipe_.find("model"), entry_);
    const int64_t length = recipe_.find_path("model.seq_length")->as_integer();
    const int64_t vocab = in_plugin(*tokenizer_, "vocab", [&] { return tokenizer_->vocab(); });
    architecture_ =
        host.make<Architecture>(entry_.name, fields_, {.vocab = vocab, .seq_length = length});
    fields_.set("vocab", architecture_->vocab());
    fields_.set("seq_length", length);
  }

  [[nodiscard]] HfCounterpart counterpart(const std::string& model_type) const {
    HfCounterpart found = in_plugin(*architecture_, "hugging_face", [&] {
      return hf_counterpart(*architecture_, entry_, fields_, model_type);
    });
    for (const auto& [key, id] : token_ids(found.config)) {
      found.config[key] = id ? Json(*id) : Json();
    }
    return found;
  }

  /// Megatron-LM's names of its tensors.
  [[nodiscard]] std::vector<HfTensor> megatron() const {
    auto maps = in_plugin(*architecture_, "megatron", [&] { return architecture_->megatron(); });
    if (maps.empty()) {
      throw Error(
          "a model of the architecture " + entry_.name +
              " with these fields has no counterpart among Megatron-LM's GPT models",
          "export it --to dcp, under its own names",
          exit_code::data
      );
    }
    return maps;
  }

  /// Ids of tokens by their keys in config.json. A decoder that reads an encoder starts with the
  /// padding's, as corpora of spans have it.
  [[nodiscard]] std::map<std::string, std::optional<int32_t>> token_ids(const Json& config) const {
    const SpecialIds special =
        in_plugin(*tokenizer_, "special_ids", [&] { return tokenizer_->special_ids(); });
    const auto end =
        in_plugin(*tokenizer_, "end_of_document", [&] { return tokenizer_->end_of_document(); });
    std::map<std::string, std::optional<int32_t>> ids{
        {"bos_token_id", special.bos},
        {"eos_token_id", special.eos ? special.eos : end},
        {"pad_token_id", special.pad}};
    if (config.value("is_encoder_decoder", false)) {
      ids["pad_token_id"] = ids["decoder_start_token_id"] = special.pad.value_or(0);
    }
    return ids;
  }

  /// Files of the tokenizer, by their names at Hugging Face.
  [[nodiscard]] std::map<std::string, fs::path> tokenizer_files() const {
    return mh::tokenizer_files(tokenizer_entry().schema, tokenizer_options_);
  }

  [[nodiscard]] const Value& recipe() const { return recipe_; }

  [[nodiscard]] std::string text(const std::string& key) const {
    const Value* value = recipe_.find_path(key);
    return value != nullptr && value->is_string() ? value->as_string() : "";
  }

private:
  [[nodiscard]] Value recipe_of(const CheckpointReader& saved) const {
    const std::string where = saved.path().string();
    if (saved.state().empty()) {
      throw Error(
          where + " holds weights, and not the recipe that says which model they are",
          "export from a run's own checkpoints",
          exit_code::data
      );
    }
    const auto state = parse_json(saved.state(), where);
    Value recipe = read_sections(state.value("sections", std::map<std::string, std::string>()));
    for (const std::string& text : invocation_.all("--set")) {
      const Layer layer = set_layer(text);
      recipe = layer.tree.find("tokenizer") != nullptr ? merge(recipe, layer.tree) : recipe;
    }
    for (const char* key : {"model.use", "model.seq_length", "tokenizer.use"}) {
      if (recipe.find_path(key) == nullptr) {
        throw Error(
            where + ": its recipe has no " + key + ", so it does not say which model it holds",
            "export a checkpoint that megahost run has written",
            exit_code::data
        );
      }
    }
    if (const Value* plugins = recipe.find("plugins"); plugins != nullptr && plugins->is_array()) {
      for (const Value& plugin : plugins->as_array()) {
        open_plugin_of_run(plugin.as_string(), where, host_);
      }
    }
    return recipe;
  }

  [[nodiscard]] const Registry::Entry& tokenizer_entry() const {
    return host_.require(Kind::tokenizer, text("tokenizer.use"));
  }

  /// The fields of a section that are its plugin's, with the defaults of those that are newer than
  /// the run.
  static Table options(const Value& section, const Registry::Entry& entry) {
    Table own;
    for (const auto& field : section.as_table()) {
      if (entry.schema.find(field.key) != nullptr) {
        own.set(field.key, field.value);
      }
    }
    return Registry::checked(entry, own).as_table();
  }

  Host& host_;
  const Invocation& invocation_;
  Value recipe_;
  const Registry::Entry& entry_;
  Table tokenizer_options_;
  std::unique_ptr<Tokenizer> tokenizer_;
  Table fields_;
  std::unique_ptr<Architecture> architecture_;
};

const char* dtype_word(at::ScalarType dtype) {
  return dtype == at::kFloat ? "float32" : dtype == at::kHalf ? "float16" : "bfloat16";
}

std::string json_file(const Json& json) {
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

int64_t step_of(const Saved& saved) {
  const std::string where = saved.reader->path().string();
  return json_size(parse_json(saved.reader->state(), where), "step", where);
}

/// The folder of -o, in which an export of the same step that was ended is removed.
Path output_for_step(
    const Invocation& invocation,
    Storage& storage,
    const IterationFormat& format,
    const std::string& step
) {
  const bool is_half = format.is_half(output_folder(invocation) / step);
  return output_of_format(invocation, storage, {}, is_half ? step : "");
}

int export_as_torch_dist(const Saved& saved, const Invocation& invocation, Host& host) {
  const at::NoGradGuard no_grad;
  Storage& storage = host.storage();
  const int64_t step = step_of(saved);
  const TorchDistFormat format({}, {.storage = storage});
  const Path to = output_for_step(invocation, storage, format, iteration_name(step));
  const SavedModel model(*saved.reader, invocation, host);
  OutlinedTensors tensors = megatron_tensors(
      *saved.reader,
      model.megatron(),
      dtype_named(invocation.value("--dtype", model.text("precision")))
  );
  tensors.file_bytes = file_bytes(invocation);
  const bool goes_on = has_moments(tensors);
  const Json common =
      goes_on ? megatron_common(
                    model.recipe(), parse_json(saved.reader->state(), saved.reader->path().string())
                )
              : Json::object();
  say_needs("the export", tensors, to);
  uint64_t bytes = 0;
  {
    ByteProgress progress("exporting", tensors.bytes());
    tensors.progress = [&progress](uint64_t done) { progress(done); };
    bytes = write_torch_dist(storage, to, step, tensors, common);
  }
  std::printf(
      "%s: iteration %s for Megatron-LM, %s of %s\n",
      to.c_str(),
      grouped(step).c_str(),
      goes_on ? "weights and Adam's state" : "weights without an optimizer's state",
      bytes_text(static_cast<int64_t>(bytes)).c_str()
  );
  return 0;
}

/// The ranks of --tensor and --pipeline, which no key and value heads of one rank are split for.
XserLayout xser_layout(const Invocation& invocation, const Json& config) {
  constexpr int64_t kMost = 4096;
  const XserLayout layout{
      number_option(invocation, "--tensor", 1, 1, kMost),
      number_option(invocation, "--pipeline", 1, 1, kMost),
      number_option(invocation, "--writers", 8, 1, kMost)};
  for (const char* key : {"num_attention_heads", "num_key_value_heads"}) {
    const int64_t heads = config.value(key, layout.tensor);
    if (heads % layout.tensor != 0) {
      throw Error(
          std::to_string(heads) + " heads (" + key + ") cannot be split over " +
              std::to_string(layout.tensor) + " tensor-parallel ranks",
          "name a divisor by --tensor; key and value heads are not repeated (kv_size_multiplier 1)",
          exit_code::data
      );
    }
  }
  return layout;
}

int export_as_xser(const Saved& saved, const Invocation& invocation, Host& host) {
  Storage& storage = host.storage();
  const int64_t step = step_of(saved);
  const XserFormat format({}, {.storage = storage});
  const Path to = output_for_step(invocation, storage, format, xser_folder(step));
  const SavedModel model(*saved.reader, invocation, host);
  const HfCounterpart counterpart = model.counterpart(invocation.value("--model-type"));
  const XserLayout layout = xser_layout(invocation, counterpart.config);
  OutlinedTensors tensors = mapped_tensors(
      *saved.reader,
      counterpart.tensors,
      TensorNames::hugging_face,
      dtype_named(invocation.value("--dtype", model.text("precision")))
  );
  say_needs("the export", tensors, to);
  uint64_t bytes = 0;
  {
    ByteProgress progress("exporting", tensors.bytes());
    tensors.progress = [&progress](uint64_t done) { progress(done); };
    bytes = write_xser(storage, to, step, tensors, layout, json_file(counterpart.config));
  }
  std::printf(
      "%s: step %s for NeuronX Distributed, weights of %s for %s tensor- and %s pipeline-parallel "
      "ranks\n",
      to.c_str(),
      grouped(step).c_str(),
      bytes_text(static_cast<int64_t>(bytes)).c_str(),
      grouped(layout.tensor).c_str(),
      grouped(layout.pipeline).c_str()
  );
  return 0;
}

/// A line about the weights that the tensors of another program do not hold; "" if they hold all.
std::string left_out(const CheckpointReader& saved, const std::vector<HfTensor>& tensors) {
  std::set<std::string> held;
  for (const HfTensor& tensor : tensors) {
    held.insert(tensor.ours.begin(), tensor.ours.end());
  }
  std::vector<std::string> missing;
  for (const CheckpointTensor& tensor : saved.tensors()) {
    if (tensor.is_weight && !held.contains(tensor.name)) {
      missing.push_back(tensor.name);
    }
  }
  return missing.empty()
             ? ""
             : "left out, for they have no counterpart there: " + grouped(std::ssize(missing)) +
                   " tensors, " + visible(missing.front()) +
                   (missing.size() > 1 ? " and so on\n" : "\n");
}

} // namespace

int command_checkpoint_export(const Invocation& invocation, Host& host) {
  return_freed_memory();
  const Saved saved = open_saved(invocation, invocation.arguments.front(), host);
  if (invocation.value("--to") == "dcp") {
    return export_as_dcp(saved, invocation, host);
  }
  if (saved.reader->names() != TensorNames::own) {
    throw Error(
        saved.reader->path().string() + " has the names of " + program_of(saved.reader->names()) +
            ", and no recipe that says which model it is",
        "export from a run's own checkpoints; megahost checkpoint import --recipe makes one",
        exit_code::data
    );
  }
  if (invocation.value("--to") == "torch_dist") {
    return export_as_torch_dist(saved, invocation, host);
  }
  if (invocation.value("--to") == "xser") {
    return export_as_xser(saved, invocation, host);
  }
  const Path to = output_folder(invocation);
  Storage& storage = host.storage();
  if (storage.contains(to / "config.json")) {
    throw Error(
        to.string() + " holds a model already", "name another folder by -o", exit_code::data
    );
  }
  (void)output_of_format(
      invocation,
      storage,
      {"model.safetensors",
       "model-",
       "generation_config.json",
       "token",
       "special_tokens_map.json",
       "added_tokens.json",
       "vocab",
       "merges.txt",
       "spiece.model",
       "chat_template.jinja"}
  );
  const SavedModel model(*saved.reader, invocation, host);
  HfCounterpart counterpart = model.counterpart(invocation.value("--model-type"));
  const at::ScalarType dtype =
      dtype_named(invocation.value("--dtype", model.text("precision"))).value_or(at::kBFloat16);
  counterpart.config["torch_dtype"] = dtype_word(dtype);
  OutlinedTensors tensors =
      mapped_tensors(*saved.reader, counterpart.tensors, TensorNames::hugging_face, dtype);
  tensors.file_bytes = file_bytes(invocation);
  const uint64_t bytes = tensors.bytes();
  say_needs("the export", tensors, to);
  {
    ByteProgress progress("exporting", bytes);
    tensors.progress = [&progress](uint64_t done) { progress(done); };
    write_hf_weights(storage, to, tensors);
  }
  Json generation{{"_from_model_config", true}};
  for (const auto& [key, id] : model.token_ids(counterpart.config)) {
    if (id) {
      generation[key] = *id;
    }
  }
  put_text(storage, to / "generation_config.json", json_file(generation));
  const auto files = model.tokenizer_files();
  for (const auto& [name, file] : files) {
    put_text(storage, to / name, read_file(file, kLongestTokenizer));
  }
  put_text(storage, to / "config.json", json_file(counterpart.config)); // last: now it is a model
  std::printf(
      "%s: a %s of %s in %s%s\n",
      to.c_str(),
      counterpart.model_type.c_str(),
      bytes_text(static_cast<int64_t>(bytes)).c_str(),
      dtype_word(dtype),
      files.empty() ? "; the tokenizer has no files to copy" : ", with its tokenizer"
  );
  std::printf("%s", left_out(*saved.reader, counterpart.tensors).c_str());
  return 0;
}

} // namespace mh
