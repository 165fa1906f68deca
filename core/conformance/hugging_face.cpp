// Tests of what an architecture says about other programs' models: names of tensors at Hugging Face
// and at Megatron-LM, keys of config.json.

#include "core/import/hugging_face.hpp"

#include "core/base/text.hpp"
#include "core/checkpoint/hf.hpp"
#include "core/conformance/instance.hpp"
#include "core/conformance/model.hpp"
#include "core/conformance/tests.hpp"
#include "megahost/error.hpp"

#include <ATen/ops/zeros.h>

#include <algorithm>
#include <map>
#include <set>

namespace mh::check {

namespace {

/// How often the mapping uses each element of each tensor of ours, by name.
class Uses {
public:
  Uses(const ParameterStore& store, TensorNames names)
      : program_(program_of(names))
      , function_(names == TensorNames::megatron ? "megatron()" : "hugging_face()") {
    for (const Parameter& parameter : store.all()) {
      for (const Piece& piece : parameter.pieces) {
        counts_[piece.name] = at::zeros(piece.global_shape);
      }
    }
    for (const Buffer& buffer : store.buffers()) {
      buffers_.insert(buffer.piece.name);
      counts_[buffer.piece.name] = at::zeros(buffer.piece.global_shape);
    }
  }

  void add(const HfTensor& map) {
    if (map.ours.empty() || !theirs_.insert(map.theirs).second) {
      fail(
          function_ + " names " + map.theirs +
          (map.ours.empty() ? " without a tensor of ours" : " twice")
      );
    }
    std::vector<int64_t> rest; // all dimensions but the first, along which parts are concatenated
    bool is_next = false;
    for (const HfPart& one : parts_of(map)) {
      const std::string& name = one.ours;
      at::Tensor part = selected(map, one);
      const std::vector<int64_t> others(
          part.sizes().begin() + (part.dim() > 0 ? 1 : 0), part.sizes().end()
      );
      if (is_next && others != rest) {
        fail(
            "the parts of " + map.theirs + " cannot be concatenated: " + map.ours.front() +
                " and " + name + " differ in more than their first dimension",
            "name parts that lie one behind the other"
        );
      }
      if (map.groups < 1 || (part.dim() > 0 && part.size(0) % map.groups != 0)) {
        fail(
            map.theirs + " is said to be made of " + std::to_string(map.groups) + " groups of " +
                name + ", which has " + std::to_string(part.size(0)) + " rows",
            "groups are equal: each has the rows of as many heads"
        );
      }
      if (!map.order.empty()) {
        require_order(map, part, name);
      }
      if (map.transpose && part.dim() != 2) {
        fail(
            map.theirs + " is said to be the transpose of " + name + ", which has " +
                std::to_string(part.dim()) + " dimensions",
            "only matrices are transposed"
        );
      }
      rest = others;
      is_next = true;
      part.add_(map.repeats ? 0 : 1); // another of theirs holds it, too
    }
  }

  /// A buffer may be left out: it starts as it always does.
  void require_once() const {
    for (const auto& [name, count] : counts_) {
      const bool may_be_absent = buffers_.contains(name) && count.max().item().toDouble() == 0;
      if (!may_be_absent && count.min().item().toDouble() < 1) {
        fail(
            "no tensor of " + program_ + " holds " + name +
                (count.max().item().toDouble() > 0 ? " whole" : ""),
            "add it to " + function_ + ", or return nothing where the fields have no counterpart"
        );
      }
      if (count.max().item().toDouble() > 1) {
        fail("several tensors of " + program_ + " hold " + name, "name each once");
      }
    }
  }

private:
  /// The order is one of the dimensions of the only part.
  static void require_order(const HfTensor& map, const at::Tensor& part, const std::string& name) {
    const auto dims = static_cast<size_t>(part.dim());
    const std::set<int64_t> named(map.order.begin(), map.order.end());
    const bool all = map.order.size() == dims && named.size() == dims && *named.begin() == 0 &&
                     *named.rbegin() + 1 == part.dim();
    if (!all || (map.joined && dims < 2)) {
      fail(
          map.theirs + " is said to have the dimensions of " + name + " in another order, but " +
              name + " has " + std::to_string(dims),
          "`order` names each dimension of ours once"
      );
    }
    if (map.ours.size() != 1 || map.groups != 1 || map.entries != 0 || !map.at.empty() ||
        map.transpose) {
      fail(
          map.theirs + " has an `order` next to several parts, groups, entries or a transpose",
          "dimensions are reordered of one whole tensor"
      );
    }
  }

  /// The entry of ours that theirs is.
  at::Tensor selected(const HfTensor& map, const HfPart& one) {
    const std::string& name = one.ours;
    const auto found = counts_.find(name);
    if (found == counts_.end()) {
      std::vector<std::string> names;
      for (const auto& [known, count] : counts_) {
        names.push_back(known);
      }
      const auto meant = nearest(name, names);
      fail(
          function_ + " maps " + map.theirs + " to " + name + ", which its model does not have",
          meant ? "did you mean " + *meant + "?" : "megahost calls parameters by block and scope"
      );
    }
    at::Tensor part = found->second;
    for (const int64_t index : one.at) {
      if (part.dim() < 2 || index < 0 || index >= part.size(0)) {
        fail(
            map.theirs + " is said to be entry " + std::to_string(index) + " of " + name +
                ", which has no such entry",
            "entries of `at` count along the first dimensions"
        );
      }
      part = part.select(0, index);
    }
    return part;
  }

  std::string program_, function_;
  std::map<std::string, at::Tensor> counts_;
  std::set<std::string> buffers_;
  std::set<std::string> theirs_;
};

/// Rows name fields that there are, and no field twice.
void check_rows(const HfMapping& mapping, const HfModel& model, const Schema& schema) {
  std::set<std::string> keys, fields;
  const auto require_field = [&](const std::string& field, const std::string& where) {
    if (field != "seq_length" && schema.find(field) == nullptr) {
      fail(
          "hugging_face_config() of " + model.model_type + " names the field " + field + " (" +
              where + "), which it does not have",
          "name a field of fields(), or seq_length"
      );
    }
  };
  for (const HfKey& key : model.keys) {
    if (!keys.insert(key.key).second || (!key.field.empty() && !fields.insert(key.field).second)) {
      fail(
          "hugging_face_config() of " + model.model_type + " has two rows of " + key.key + " or " +
              key.field,
          "one key decides one field; `simplify` brings several into one"
      );
    }
    if (!key.field.empty()) {
      require_field(key.field, key.key);
    } else if (key.words.empty()) {
      fail(
          "hugging_face_config() of " + model.model_type + " has a row of " + key.key +
              " with neither field nor words",
          "list the values that change nothing, or put the key under `harmless`"
      );
    }
  }
  for (const auto& entry : model.always) {
    require_field(entry.key, "always");
  }
  for (const std::string& field : mapping.free) {
    require_field(field, "free");
  }
}

/// Reads a config.json, writes what was read, reads that: the fields stay.
class RoundTrip {
public:
  RoundTrip(const Registry::Entry& entry, const HfModel& model)
      : entry_(entry)
      , model_(model) {}

  /// The configuration with transformers' defaults, and those with one key changed.
  ///
  /// Returns: whether the plugin reads the first at all; its model may have parts that we lack
  [[nodiscard]] bool run() {
    try {
      (void)read(plain_config());
    } catch (const Error&) {
      return false;
    }
    require_same(plain_config(), "with all keys absent");
    for (const HfKey& key : model_.keys) {
      for (const Value& value : other_values(key)) {
        Table config = plain_config();
        set(config, key.key, value);
        try {
          (void)read(config);
        } catch (const Error&) {
          continue; // it contradicts the other keys
        }
        require_same(config, "with " + key.key + " = " + to_text(value));
      }
    }
    return true;
  }

private:
  /// Nothing but what may not be absent.
  [[nodiscard]] Table plain_config() const {
    Table config{{"model_type", Value(model_.model_type)}};
    for (const HfKey& key : model_.keys) {
      if (key.field.empty() && !key.words.empty() && !is_word(key, key.absent)) {
        set(config, key.key, key.words.front().theirs);
      }
    }
    return config;
  }

  [[nodiscard]] Table read(const Table& config) const {
    return read_hf_fields(config, *entry_.hugging_face, entry_.schema, entry_.name).fields;
  }

  static void set(Table& config, const std::string& key, const Value& value) {
    const auto [object, member] = split_key(key);
    config.set(object.empty() ? member : object, object.empty() ? value : Table{{member, value}});
  }

  [[nodiscard]] std::vector<Value> other_values(const HfKey& key) const {
    std::vector<Value> values;
    for (const HfWord& word : key.words) {
      const Field* field = entry_.schema.find(key.field);
      values.push_back(
          field != nullptr && field->list ? Value(Value::Array{word.theirs}) : word.theirs
      );
    }
    if (!key.words.empty() || key.field.empty()) {
      return values;
    }
    const Field* field = entry_.schema.find(key.field);
    const FieldType type = field == nullptr ? FieldType::integer : field->type;
    if (type == FieldType::boolean) {
      return {true, false};
    }
    if (type == FieldType::number) {
      return {0.5, 2.5};
    }
    return type == FieldType::integer && !(field != nullptr && field->list)
               ? std::vector<Value>{2, 6}
               : std::vector<Value>{};
  }

  void require_same(const Table& config, const std::string& how) const {
    Table first, second;
    try {
      first = read(config);
      Table own = first;
      own.erase("seq_length");
      second = read(write_hf_config(first, model_));
      std::vector<Problem> problems;
      (void)complete(entry_.schema, own, "model", problems);
      if (how == "with all keys absent" && !problems.empty()) {
        fail(
            "a " + model_.model_type + " " + how +
                " gives fields that it refuses: " + problems.front().message,
            "check the defaults (`absent`) against transformers' class"
        );
      }
    } catch (const Error& error) {
      fail(
          "a config.json of " + model_.model_type + " " + how +
              " cannot be read and written: " + error.what(),
          error.hint()
      );
    }
    if (!(first == second)) {
      fail(
          "a config.json of " + model_.model_type + " " + how +
              " says something else once it was read and written: " + to_text(first) + ", then " +
              to_text(second),
          "let `words` name each value of theirs once more as ours, and `restore` undo `simplify`"
      );
    }
  }

  const Registry::Entry& entry_;
  const HfModel& model_;
};

} // namespace

void hugging_face_names(const Case& c) {
  const auto architecture = make<Architecture>(c);
  bool is_named = false;
  for (const TensorNames names : {TensorNames::hugging_face, TensorNames::megatron}) {
    const auto maps = mapping_of(*architecture, names);
    if (maps.empty()) {
      continue;
    }
    is_named = true;
    const SmallModel model(*architecture, {});
    Uses uses(model.model->parameters(), names);
    for (const HfTensor& map : maps) {
      uses.add(map);
    }
    uses.require_once();
  }
  if (!is_named) {
    not_applicable("it has no names at Hugging Face for these options");
  }
}

void hugging_face_config(const Case& c) {
  if (c.entry->hugging_face == nullptr) {
    not_applicable("it has no hugging_face_config()");
  }
  const std::vector<HfModel>& models = c.entry->hugging_face->models;
  bool tried = models.empty();
  for (const HfModel& model : models) {
    check_rows(*c.entry->hugging_face, model, c.entry->schema);
    tried = RoundTrip(*c.entry, model).run() || tried;
  }
  if (!tried) {
    fail(
        "it reads the defaults of none of its models: a config.json with nothing but " +
            models.front().model_type + " as its model_type is refused",
        "check the defaults (`absent`) against transformers' class"
    );
  }
}

} // namespace mh::check
