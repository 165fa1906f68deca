#include "megahost/schema.hpp"

#include "core/base/text.hpp"
#include "core/language/problem.hpp"
#include "core/schema/sections.hpp"
#include "core/schema/terms.hpp"
#include "core/schema/unknown.hpp"

#include <algorithm>
#include <cmath>

namespace mh {

const Field* Schema::find(std::string_view name) const {
  const auto found = std::find_if(fields.begin(), fields.end(), [name](const Field& field) {
    return field.name == name;
  });
  return found == fields.end() ? nullptr : &*found;
}

const Field* Schema::find(Mechanism mechanism) const {
  const auto found = std::find_if(fields.begin(), fields.end(), [mechanism](const Field& field) {
    return field.mechanism == mechanism;
  });
  return found == fields.end() ? nullptr : &*found;
}

std::vector<std::string> Schema::layer_fields() const {
  std::vector<std::string> names;
  for (const Field& field : fields) {
    if (field.name == "layers") {
      names.insert(names.begin(), field.name);
    } else if (field.more_layers) {
      names.push_back(field.name);
    }
  }
  return names;
}

int64_t Schema::layers_in(const Value& options) const {
  int64_t layers = 0;
  for (const std::string& name : layer_fields()) {
    const Value* value = options.find(name);
    layers += value != nullptr && value->is_integer() ? value->as_integer() : 0;
  }
  return layers;
}

namespace {

std::string bound(double number) {
  const auto integer = exact_integer(number);
  return integer ? std::to_string(*integer) : number_text(number);
}

std::string limits(const Field& field) {
  std::string text;
  if (field.min) {
    text += (field.above_min ? "above " : "at least ") + bound(*field.min);
  }
  if (field.max) {
    text += (text.empty() ? "" : " and ") + std::string(field.below_max ? "below " : "at most ") +
            bound(*field.max);
  }
  return text;
}

std::string type_name(const Field& field) {
  switch (field.type) {
  case FieldType::boolean:
    return field.list ? "list of booleans" : "true or false";
  case FieldType::integer:
    return field.list ? "list of integers" : "integer";
  case FieldType::number:
    return field.list ? "list of numbers" : "number";
  case FieldType::string:
    return field.path ? (field.list ? "list of paths" : "path")
                      : (field.list ? "list of strings" : "string");
  case FieldType::integer_or_string:
    return field.list ? "list of integers or strings" : "integer";
  case FieldType::plugin:
    return "name, or a table of `use` and options";
  case FieldType::table:
    return field.list ? "list of tables" : "table";
  case FieldType::any:
    return field.list ? "list" : "any value";
  }
  return "";
}

/// `describe` as it stands in a sentence: "an integer, at least 1".
std::string in_a_sentence(const Field& field) {
  const std::string text = describe(field);
  for (const char* bare : {"`", "true", "any", "a "}) {
    if (text.starts_with(bare)) {
      return text;
    }
  }
  return (text.starts_with("integer") ? "an " : "a ") + text;
}

/// One value of the field's type, brought into that type; the reason if that fails.
struct CheckedValue {
  Value value;
  std::string wrong; ///< "7 is not one of ...": empty if the value is fine
  std::string label;
};

CheckedValue check_word(const Field& field, const Value& value) {
  const std::string& word = value.as_string();
  if (const auto refused = field.refused.find(word); refused != field.refused.end()) {
    return {value, refused->second, "not yet"};
  }
  if (field.choices.empty() || field.parts ||
      std::find(field.choices.begin(), field.choices.end(), word) != field.choices.end()) {
    return {value, "", ""};
  }
  const auto meant = word_meant(word, field.choices);
  return {
      value,
      "is " + to_text(value) + ", expected " + in_a_sentence(field),
      meant ? "did you mean `" + *meant + "`?" : ""};
}

CheckedValue check_number(const Field& field, const Value& value) {
  const double number = value.as_number();
  const bool low = field.min && (field.above_min ? number <= *field.min : number < *field.min);
  const bool high = field.max && (field.below_max ? number >= *field.max : number > *field.max);
  if (!std::isfinite(number) || low || high) {
    const std::string expected = std::isfinite(number) ? limits(field) : "a finite number";
    return {value, "is " + to_text(value) + ", expected " + expected, ""};
  }
  return {value, "", ""};
}

CheckedValue check_one(const Field& field, Value value) {
  const auto mismatch = [&] {
    const std::string text = to_text(value);
    constexpr size_t kLongest = 40;
    const std::string found = text.size() <= kLongest ? text : describe(value.type());
    return CheckedValue{value, "is " + found + ", expected " + in_a_sentence(field), ""};
  };
  const auto origin = value.origin;
  switch (field.type) {
  case FieldType::boolean:
    return value.is_boolean() ? CheckedValue{value, "", ""} : mismatch();
  case FieldType::number:
    if (!value.is_number()) {
      return mismatch();
    }
    value = value.as_number();
    value.origin = origin;
    return check_number(field, value);
  case FieldType::string:
    return value.is_string() ? check_word(field, value) : mismatch();
  case FieldType::integer:
  case FieldType::integer_or_string:
    if (field.type == FieldType::integer_or_string && value.is_string()) {
      return check_word(field, value);
    }
    if (!value.is_number() || (!value.is_integer() && !exact_integer(value.as_number()))) {
      return mismatch();
    }
    value = value.as_integer();
    value.origin = origin;
    return check_number(field, value);
  case FieldType::plugin:
    return value.is_string() ||
                   (value.is_table() && (!value.find("use") || value.find("use")->is_string()))
               ? CheckedValue{value, "", ""}
               : mismatch();
  case FieldType::table:
    if (value.is_array() && value.as_array().empty()) { // Lua's {} is both
      value = Table{};
      value.origin = origin;
    }
    return value.is_table() ? CheckedValue{value, "", ""} : mismatch();
  case FieldType::any:
    return {value, "", ""};
  }
  return {value, "", ""};
}

/// A whole field's value; the first wrong element of a list stands for it.
CheckedValue check_field(const Field& field, Value value) {
  if (!field.list) {
    return check_one(field, std::move(value));
  }
  const auto origin = value.origin;
  if (value.is_table() && value.as_table().empty()) {
    value = Value::Array{};
    value.origin = origin;
  }
  if (!value.is_array()) {
    return {value, "is " + to_text(value) + ", expected " + in_a_sentence(field), ""};
  }
  Field one = field;
  one.list = false;
  for (Value& item : value.as_array()) {
    CheckedValue checked = check_one(one, item);
    if (!checked.wrong.empty()) {
      if (checked.wrong.starts_with("is ")) {
        checked.wrong.replace(0, 2, "holds");
      }
      checked.value.origin = item.origin.source ? item.origin : origin;
      return checked;
    }
    item = std::move(checked.value);
  }
  return {value, "", ""};
}

/// The tables of a field that are read into structs: each by its own schema.
void complete_items(
    const Field& field,
    const std::string& key,
    Value& ret_value,
    const SectionSchemas& known,
    std::vector<Problem>& problems
) {
  if (!field.list) {
    ret_value = complete(*field.item, ret_value, key, problems, known);
    return;
  }
  auto& items = ret_value.as_array();
  for (size_t i = 0; i < items.size(); ++i) {
    items[i] =
        complete(*field.item, items[i], key + "[" + std::to_string(i) + "]", problems, known);
  }
}

} // namespace

std::string describe(const Field& field) {
  if (!field.choices.empty() && field.type == FieldType::string) {
    return (field.list ? "a list of " : "") + alternatives(field.choices);
  }
  std::string text = type_name(field);
  if (const std::string range = limits(field); !range.empty()) {
    text += (field.list ? ", each " : ", ") + range;
  }
  if (field.type == FieldType::integer_or_string) {
    text += field.choices.empty() ? " or a string" : " or " + alternatives(field.choices);
  }
  return text;
}

PluginSection plugin_named(const Value& value) {
  if (value.is_string()) {
    return {value.as_string(), Table{}};
  }
  Table options = value.as_table();
  const Value* use = options.find("use"); // none: the field's default, which `resolve` fills in
  PluginSection section{use ? use->as_string() : "", Table{}};
  options.erase("use");
  section.options = std::move(options);
  return section;
}

Value complete(
    const Schema& schema,
    const Value& given,
    const std::string& path,
    std::vector<Problem>& problems
) {
  return complete(schema, given, path, problems, core_schemas());
}

Value complete(
    const Schema& schema,
    const Value& given,
    const std::string& path,
    std::vector<Problem>& problems,
    const SectionSchemas& known
) {
  const size_t problems_before = problems.size();
  static const Table kEmpty;
  const bool is_table = given.is_table();
  const bool nothing = given.is_null() || (given.is_array() && given.as_array().empty());
  if (!is_table && !nothing) {
    const bool names_plugin = given.is_string() && plugin_section(path) != nullptr;
    problems.push_back(
        {given.origin,
         path,
         path + " is " + to_text(given) + ", expected a table",
         names_plugin ? "write " + path + " = { use = " + to_text(given) + " }" : "",
         ""}
    );
  }
  const Table& table = is_table ? given.as_table() : kEmpty;
  for (const auto& entry : table) {
    if (!schema.find(entry.key)) {
      report_unknown(schema, entry, path, known, problems);
    }
  }
  Table result;
  for (const Field& field : schema.fields) {
    const std::string key = path.empty() ? field.name : path + "." + field.name;
    const Table::Entry* entry = table.entry(field.name);
    if (!entry || entry->value.is_null()) {
      if (field.required) {
        problems.push_back(
            {given.origin,
             key,
             key + " is missing, expected " + in_a_sentence(field),
             "",
             key + ": " + field.doc}
        );
      } else if (!field.default_value.is_null()) {
        result.set(field.name, field.default_value);
      }
      continue;
    }
    CheckedValue checked = check_field(field, entry->value);
    if (checked.wrong.empty() && field.item) {
      complete_items(field, key, checked.value, known, problems);
    }
    if (checked.wrong.empty()) {
      result.set(field.name, std::move(checked.value), entry->key_origin);
      continue;
    }
    const Origin& at = checked.value.origin;
    problems.push_back(
        {at.source ? at : entry->key_origin,
         key,
         key + " " + checked.wrong,
         checked.label,
         field.doc.empty() ? "" : key + ": " + field.doc}
    );
    if (!field.default_value.is_null()) {
      result.set(field.name, field.default_value);
    }
  }
  Value completed(std::move(result));
  completed.origin = given.origin;
  if (problems.size() == problems_before) {
    for (const Schema::Check& check : schema.checks) {
      const std::string wrong = check.run(completed);
      if (!wrong.empty()) {
        const Value* at = completed.find(check.field);
        const std::string key = path.empty() ? check.field : path + "." + check.field;
        problems.push_back(
            {at && at->origin.source ? at->origin : completed.origin,
             key,
             key + ": " + wrong,
             "",
             ""}
        );
      }
    }
  }
  return completed;
}

Value complete_or_throw(const Schema& schema, const Value& table, const std::string& path) {
  std::vector<Problem> problems;
  Value completed = complete(schema, table, path, problems);
  throw_problems(std::move(problems));
  return completed;
}

} // namespace mh
