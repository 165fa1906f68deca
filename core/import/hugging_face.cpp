#include "core/import/hugging_face.hpp"

#include "core/base/text.hpp"
#include "core/language/foreign_json.hpp"
#include "core/language/problem.hpp"
#include "core/language/source.hpp"
#include "megahost/error.hpp"

#include <algorithm>
#include <array>
#include <functional>

namespace mh {

bool is_word(const HfKey& key, const Value& value) {
  return std::any_of(key.words.begin(), key.words.end(), [&value](const HfWord& word) {
    return word.theirs == value;
  });
}

HfKey only_value(std::string key, const Value& value) {
  return {.key = std::move(key), .absent = value, .words = {{value}}};
}

const HfModel* HfMapping::find(std::string_view model_type) const {
  const auto found = std::find_if(models.begin(), models.end(), [model_type](const HfModel& model) {
    return model.model_type == model_type;
  });
  return found == models.end() ? nullptr : &*found;
}

namespace {

/// Keys of every model that change no number of a forward pass without dropout: about the file,
/// training, generation, classification, and what a forward pass returns.
constexpr auto kHarmless = std::to_array<std::string_view>(
    {"_attn_implementation",
     "_attn_implementation_autoset",
     "_commit_hash",
     "_name_or_path",
     "architectures",
     "attention_dropout",
     "attn_implementation",
     "attn_pdrop",
     "auto_map",
     "bad_words_ids",
     "begin_suppress_tokens",
     "bos_token_id",
     "chunk_size_feed_forward",
     "decoder_start_token_id",
     "diversity_penalty",
     "do_sample",
     "dtype",
     "early_stopping",
     "embd_pdrop",
     "encoder_no_repeat_ngram_size",
     "eos_token_id",
     "exponential_decay_length_penalty",
     "finetuning_task",
     "forced_bos_token_id",
     "forced_eos_token_id",
     "gradient_checkpointing",
     "id2label",
     "initializer_range",
     "is_decoder",
     "keys_to_ignore_at_inference",
     "label2id",
     "length_penalty",
     "max_length",
     "min_length",
     "model_type",
     "name_or_path",
     "no_repeat_ngram_size",
     "num_beam_groups",
     "num_beams",
     "num_labels",
     "num_return_sequences",
     "output_attentions",
     "output_hidden_states",
     "output_scores",
     "pad_token_id",
     "prefix",
     "pretraining_tp",
     "problem_type",
     "remove_invalid_values",
     "repetition_penalty",
     "resid_pdrop",
     "return_dict",
     "return_dict_in_generate",
     "sep_token_id",
     "suppress_tokens",
     "task_specific_params",
     "temperature",
     "tf_legacy_loss",
     "tie_encoder_decoder",
     "tokenizer_class",
     "top_k",
     "top_p",
     "torch_dtype",
     "torchscript",
     "transformers_version",
     "typical_p",
     "use_bfloat16",
     "use_cache",
     "unsloth_version"}
);

/// Keys of every model that leave the forward pass alone only with this value, or null; a model
/// with a row for one decides itself.
struct Only {
  std::string_view key;
  bool value;
};

constexpr std::array<Only, 2> kOnly{
    {{"is_encoder_decoder", false}, {"add_cross_attention", false}}};

[[noreturn]] void
refuse(const Value& at, const std::string& file, const std::string& what, const std::string& hint) {
  const std::string where = at.origin.where();
  throw Error((where.empty() ? file : where) + ": " + what, hint, exit_code::data);
}

std::string plain_text(const Value& value) {
  return value.is_null() ? "null" : to_text(value);
}

/// Equal as float32, in which transformers keeps most of them: 1e-05 is 9.999999747378752e-06.
bool same(const Value& a, const Value& b) {
  if (a.is_number() && b.is_number()) {
    return a.as_number() == b.as_number() ||
           static_cast<float>(a.as_number()) == static_cast<float>(b.as_number());
  }
  if (a.is_array() && b.is_array()) {
    return std::equal(
        a.as_array().begin(), a.as_array().end(), b.as_array().begin(), b.as_array().end(), same
    );
  }
  return a == b;
}

/// The value in the other program's words.
class ValueMap {
public:
  ValueMap(const HfKey& key, bool to_ours)
      : key_(key)
      , to_ours_(to_ours) {}

  [[nodiscard]] std::vector<std::string> known() const {
    std::vector<std::string> words;
    for (const HfWord& word : key_.words) {
      words.push_back(plain_text(from(word)));
    }
    words.erase(std::unique(words.begin(), words.end()), words.end());
    return words;
  }

  /// Calls `unknown` for a value that is no word.
  [[nodiscard]] Value
  translated(const Value& value, const std::function<void(const Value&)>& unknown) const {
    if (key_.words.empty() || value.is_null()) {
      return value;
    }
    if (value.is_array()) {
      Value::Array items;
      for (const Value& item : value.as_array()) {
        items.push_back(translated(item, unknown));
      }
      Value list(std::move(items));
      list.origin = value.origin;
      return list;
    }
    for (const HfWord& word : key_.words) {
      if (same(from(word), value)) {
        Value other = to_ours_ ? word.ours : word.theirs;
        other.origin = value.origin;
        return other;
      }
    }
    unknown(value);
    return {};
  }

private:
  [[nodiscard]] const Value& from(const HfWord& word) const {
    return to_ours_ ? word.theirs : word.ours;
  }

  const HfKey& key_;
  bool to_ours_;
};

/// Reads one config.json by the rows of its model.
class ConfigReader {
public:
  ConfigReader(
      const Value& config, const HfModel& model, const Schema& schema, std::string architecture
  )
      : config_(config)
      , table_(config.as_table())
      , model_(model)
      , schema_(schema)
      , architecture_(std::move(architecture)) {
    reading_.file = config.origin.source ? config.origin.source->name : "config.json";
    reading_.model_type = model.model_type;
  }

  HfReading run() {
    check_common();
    name_aliases();
    fill_in();
    if (model_.simplify) {
      model_.simplify(table_);
    }
    for (const HfKey& key : model_.keys) {
      if (key.read) {
        read(key);
      }
    }
    for (const auto& entry : model_.always) {
      reading_.fields.set(entry.key, entry.value);
    }
    check_types();
    find_unknown();
    return std::move(reading_);
  }

private:
  void check_common() const {
    for (const Only& only : kOnly) {
      const bool own = std::any_of(model_.keys.begin(), model_.keys.end(), [&](const HfKey& key) {
        return key.key == only.key;
      });
      const Value* value = own ? nullptr : table_.find(only.key);
      if (value != nullptr && !value->is_null() && !(*value == Value(only.value))) {
        impossible(*value, std::string(only.key), {only.value ? "true" : "false"});
      }
    }
    for (const char* key : {"quantization_config", "per_layer_config"}) {
      const auto& own = model_.harmless; // a model that lists the key looks at it itself
      const bool known = std::find(own.begin(), own.end(), key) != own.end();
      const Value* value = known ? nullptr : table_.find(key);
      if (value != nullptr && !value->is_null()) {
        const Value* method = value->is_table() ? value->find("quant_method") : nullptr;
        const bool named = method != nullptr && method->is_string();
        refuse(
            *value,
            reading_.file,
            std::string("there is a ") + key + (named ? " of " + to_text(*method) : "") +
                ", of which megahost knows nothing",
            "give a folder with float weights and one config for all layers"
        );
      }
    }
  }

  void name_aliases() {
    for (const HfKey& key : model_.keys) {
      for (const std::string& alias : key.aliases) {
        if (const auto* entry = table_.entry(alias); entry != nullptr) {
          const Table::Entry copy = *entry;
          table_.erase(alias);
          if (table_.find(key.key) == nullptr) {
            table_.set(key.key, copy.value, copy.key_origin);
          }
        }
      }
    }
  }

  void fill_in() {
    for (const HfKey& key : model_.keys) {
      if (split_key(key.key).first.empty() && table_.find(key.key) == nullptr) {
        absent_.push_back(key.key);
        table_.set(key.key, default_of(key));
      }
    }
  }

  [[nodiscard]] Value default_of(const HfKey& key) const {
    Value value = key.absent;
    value.origin.source = config_.origin.source;
    return value;
  }

  void read(const HfKey& key) {
    const auto [object, member] = split_key(key.key);
    const Value* found = object.empty()        ? table_.find(member)
                         : table_.find(object) ? table_.find(object)->find(member)
                                               : nullptr;
    const Field* field = key.field.empty() ? nullptr : schema_.find(key.field);
    Value theirs = found != nullptr ? *found : default_of(key);
    if (theirs.is_null() && !may_be_null(key, field)) {
      theirs = default_of(key);
    }
    const ValueMap words(key, /*to_ours=*/true);
    const auto path = path_to(config_.as_table(), theirs.origin);
    const bool present =
        path ||
        (found != nullptr && std::find(absent_.begin(), absent_.end(), key.key) == absent_.end());
    const std::string name = path.value_or(key.key);
    const Value ours = words.translated(theirs, [&](const Value& value) {
      impossible(value, name, words.known());
    });
    if (key.field.empty()) {
      return;
    }
    reading_.said[key.field] = {name, present, key.compared};
    if (!ours.is_null()) {
      reading_.fields.set(key.field, ours);
    }
  }

  /// The key under which the file itself has the value of an origin, wherever `simplify` and
  /// aliases have moved it; nothing if it has none.
  static std::optional<std::string> path_to(const Table& table, const Origin& origin) {
    for (const auto& entry : table) {
      const Origin& at = entry.value.origin;
      if (origin.line > 0 && at.line == origin.line && at.column == origin.column) {
        return entry.key;
      }
      const auto member =
          entry.value.is_table() ? path_to(entry.value.as_table(), origin) : std::nullopt;
      if (member) {
        return entry.key + "." + *member;
      }
    }
    return std::nullopt;
  }

  /// null is a value where a model may lack the field, or where it is one of the words.
  static bool may_be_null(const HfKey& key, const Field* field) {
    return key.field.empty() ? std::any_of(
                                   key.words.begin(),
                                   key.words.end(),
                                   [](const HfWord& word) { return word.theirs.is_null(); }
                               )
                             : field != nullptr && field->default_value.is_null();
  }

  [[noreturn]] void impossible(
      const Value& value, const std::string& key, const std::vector<std::string>& known
  ) const {
    refuse(
        value,
        reading_.file,
        key + " is " + plain_text(value) + ", which " + architecture_ + " cannot do",
        "a " + model_.model_type + " can have " + join(known)
    );
  }

  /// Reports a value that a field cannot have at its place in the file.
  void check_types() const {
    Table fields = reading_.fields;
    fields.erase("seq_length");
    std::vector<Problem> problems;
    static_cast<void>(complete(schema_, fields, "model", problems));
    std::erase_if(problems, [](const Problem& problem) { return problem.origin.line == 0; });
    throw_problems(std::move(problems));
  }

  void find_unknown() {
    const auto known = [this](const std::string& name) {
      const auto begins = [&name](const HfKey& key) {
        return key.key == name || key.key.starts_with(name + ".");
      };
      const auto is = [&name](const auto& other) { return other == name; };
      return std::any_of(model_.keys.begin(), model_.keys.end(), begins) ||
             std::any_of(model_.harmless.begin(), model_.harmless.end(), is) ||
             std::any_of(kHarmless.begin(), kHarmless.end(), is) ||
             std::any_of(kOnly.begin(), kOnly.end(), [&](const Only& o) { return o.key == name; });
    };
    for (const auto& entry : table_) {
      const bool object =
          entry.value.is_table() &&
          std::any_of(model_.keys.begin(), model_.keys.end(), [&](const HfKey& key) {
            return key.key.starts_with(entry.key + ".");
          });
      if (!object) {
        note(entry, entry.key, known);
        continue;
      }
      for (const auto& member : entry.value.as_table()) {
        note(member, entry.key + "." + member.key, known);
      }
    }
  }

  template <class Known>
  void note(const Table::Entry& entry, const std::string& name, const Known& known) {
    if (!entry.value.is_null() && !known(name)) {
      reading_.unknown.push_back(name);
    }
  }

  const Value& config_;
  Table table_;
  const HfModel& model_;
  const Schema& schema_;
  std::string architecture_;
  std::vector<std::string> absent_;
  HfReading reading_;
};

constexpr const char* kFrom = "model.from";

Value checked_config(const SourcePtr& source) {
  Value config = read_foreign_json(source);
  config.origin = {source, 0, 0, 0};
  (void)hf_model_type(config);
  return config;
}

} // namespace

Value read_hf_config(const std::filesystem::path& folder) {
  const bool is_file = folder.filename() == "config.json";
  const std::filesystem::path file = is_file ? folder : folder / "config.json";
  std::error_code ignored;
  if (!std::filesystem::is_regular_file(file, ignored)) {
    throw Error(
        folder.string() + " holds no config.json",
        "give the folder of a Hugging Face model: config.json next to *.safetensors",
        exit_code::data
    );
  }
  return checked_config(read_source(file, kFrom));
}

Value read_hf_config(const std::filesystem::path& file, std::string text) {
  const auto source = std::make_shared<const Source>(Source{file.string(), std::move(text), kFrom});
  check_text(source);
  return checked_config(source);
}

const std::string& hf_model_type(const Value& config) {
  const Value* type = config.find("model_type");
  const std::string file = config.origin.source ? config.origin.source->name : "config.json";
  if (type == nullptr || !type->is_string()) {
    refuse(
        type == nullptr ? config : *type,
        file,
        type == nullptr
            ? "there is no model_type, which says what the model is"
            : "model_type is " + plain_text(*type) + ", expected a text such as \"llama\"",
        "give the folder of a model that `transformers` reads"
    );
  }
  return type->as_string();
}

HfReading read_hf_fields(
    const Value& config,
    const HfMapping& mapping,
    const Schema& schema,
    const std::string& architecture
) {
  const std::string& type = hf_model_type(config);
  const HfModel* model = mapping.find(type);
  if (model == nullptr) {
    std::vector<std::string> known;
    for (const HfModel& one : mapping.models) {
      known.push_back(one.model_type);
    }
    refuse(
        *config.find("model_type"),
        "config.json",
        "model_type is " + to_text(*config.find("model_type")) + ", and the architecture " +
            architecture + " has the models " + join(known),
        "another architecture may have it: `megahost plugins` lists them, and a recipe that says "
        "model = { from = \"DIR\" }, without model.use, takes the one that has it"
    );
  }
  return ConfigReader(config, *model, schema, architecture).run();
}

Table write_hf_config(const Table& fields, const HfModel& model) {
  Table config;
  config.set("architectures", Value::Array{model.architecture});
  config.set("model_type", model.model_type);
  for (const HfKey& key : model.keys) {
    const ValueMap words(key, /*to_ours=*/false);
    if (key.field.empty() && is_word(key, key.absent)) {
      continue; // its absence says it
    }
    const Value* ours = key.field.empty() ? nullptr : fields.find(key.field);
    Value theirs = key.field.empty() ? key.words.front().theirs : Value();
    if (ours != nullptr) {
      theirs = words.translated(*ours, [&](const Value& value) {
        throw Error(
            "model." + key.field + " is " + to_text(value) + ", which no " + model.model_type +
                " can have",
            "it can have " + join(words.known())
        );
      });
    }
    const auto [object, member] = split_key(key.key);
    if (object.empty()) {
      config.set(member, theirs);
    } else if (!theirs.is_null()) {
      Value* holder = config.find(object);
      (holder != nullptr ? *holder : config.set(object, Table())).as_table().set(member, theirs);
    }
  }
  if (model.restore) {
    model.restore(config);
  }
  return config;
}

namespace {

/// A field as the recipe has it, or the config.
struct Side {
  const Value* whole; ///< in one form
  const Value* given; ///< in the form of the file; null: derived from other fields
};

std::string their_words(const HfReading& theirs, const std::string& field, const Value* value) {
  const std::string is = value == nullptr ? "there is none" : "it is " + to_text(*value);
  const auto said = theirs.said.find(field);
  if (said == theirs.said.end()) {
    return "of a " + theirs.model_type + " " + is;
  }
  return said->second.present ? "by " + said->second.key + " in config.json " + is
                              : "config.json has no " + said->second.key + ", by which " + is;
}

const Value* value_of(const Table& table, const std::string& field) {
  const Value* value = table.find(field);
  return value == nullptr || value->is_null() ? nullptr : value;
}

} // namespace

std::vector<HfDifference> hf_differences(
    const HfReading& theirs, const Table& options, const HfMapping& mapping, const Schema& schema
) {
  Table own = theirs.fields;
  own.erase("seq_length");
  for (const std::string& name : mapping.free) {
    if (const Value* value = options.find(name)) {
      own.set(name, *value);
    }
  }
  Table their_fields = complete_or_throw(schema, own, "model").as_table();
  Table our_fields = options;
  const Table ours_given = our_fields;
  const Table theirs_given = their_fields;
  if (mapping.plain) {
    mapping.plain(our_fields);
    mapping.plain(their_fields);
  }
  std::vector<std::string> names{"seq_length"};
  for (const Field& field : schema.fields) {
    names.push_back(field.name);
  }
  if (const Value* length = theirs.fields.find("seq_length")) {
    their_fields.set("seq_length", *length);
  }
  std::vector<HfDifference> said, derived;
  for (const std::string& name : names) {
    const auto known = theirs.said.find(name);
    const bool is_free =
        std::find(mapping.free.begin(), mapping.free.end(), name) != mapping.free.end() ||
        (known != theirs.said.end() ? !known->second.compared : name == "seq_length");
    const Value* a = value_of(our_fields, name);
    const Value* b = value_of(their_fields, name);
    if (is_free || (a == nullptr && b == nullptr) ||
        (a != nullptr && b != nullptr && same(*a, *b))) {
      continue;
    }
    const std::string where = a == nullptr ? "" : a->origin.where();
    const bool explicit_one =
        value_of(ours_given, name) != nullptr || value_of(theirs_given, name) != nullptr;
    (explicit_one ? said : derived)
        .push_back(
            {name,
             a == nullptr ? Origin() : a->origin,
             "model." + name + (a == nullptr ? " is absent" : " is " + to_text(*a)) + ", " +
                 their_words(theirs, name, b)}
        );
  }
  return said.empty() ? derived : said;
}

std::string hf_unknown_keys(const HfReading& reading) {
  if (reading.unknown.empty()) {
    return "";
  }
  const bool one = reading.unknown.size() == 1;
  return reading.file + ": megahost does not know the key" + (one ? " " : "s ") +
         join(reading.unknown) + " and goes on without " + (one ? "it" : "them") + "; should " +
         (one ? "it" : "they") + " change what the model computes, the numbers differ";
}

std::string hf_beyond_length(const HfReading& reading, int64_t seq_length) {
  const auto said = reading.said.find("seq_length");
  const Value* most = reading.fields.find("seq_length");
  if (most == nullptr || said == reading.said.end() || !said->second.present ||
      seq_length <= most->as_integer()) {
    return "";
  }
  return "model.seq_length is " + std::to_string(seq_length) + ", by " + said->second.key + " in " +
         reading.file + " the weights are good for " + std::to_string(most->as_integer()) +
         " tokens: beyond them losses usually rise";
}

} // namespace mh
