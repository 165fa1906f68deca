#pragma once
/// The keys that a section of a recipe may hold: declared once next to the code that reads them,
/// used to check recipes, to fill in defaults, to print help and to complete keys in editors.
///
/// ```cpp
/// struct Config {
///   int64_t layers = 12;
///   std::optional<int64_t> head_dim;
/// };
/// static void fields(mh::Fields<Config>& f) {
///   f.add("layers", &Config::layers, "transformer blocks").at_least(1);
///   f.add("head_dim", &Config::head_dim, "size of a head; hidden / heads if absent").at_least(1);
/// }
/// ```

#include "megahost/export.hpp"
#include "megahost/kind.hpp"
#include "megahost/mesh_shape.hpp"
#include "megahost/value.hpp"

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

namespace mh {

/// A member that is a T or a word: `data = 4`, `data = "auto"`. `one_of` lists the words.
template <class T>
using StringOr = std::variant<T, std::string>;

/// A plugin that a recipe names, and its options: `device = "cpu"`, or
/// `device = { use = "mine", peak = 2e11 }`. In a section that a plugin supplies they are its keys.
struct PluginSection {
  std::string use;         ///< the plugin's name
  Value options = Table{}; ///< the plugin's fields, complete
};

enum class FieldType : uint8_t {
  boolean,
  integer,
  number,
  string,
  integer_or_string,
  plugin, ///< a name, or a table of `use` and options
  table,
  any
};

struct Schema;

/// Whether a resumed run may have another value than its checkpoint.
enum class OnResume : uint8_t {
  as_section, ///< model, optimizer, data and tokenizer stay the same; other sections are free
  same,       ///< the value decides the numbers of a run
  free        ///< it does not, or the run has a rule for its change
};

/// The mechanism of the core that reads a strategy's key, whatever the key is called.
enum class Mechanism : uint8_t {
  none,
  sequence,        ///< tokens are split between the regions of tensor parallelism
  zero,            ///< ZeRO: 0 nothing is sharded over data-parallel ranks, ..., 3 weights too
  schedule,        ///< order of a pipeline's passes
  virtual_stages,  ///< chunks of the model on each stage of a pipeline
  pipeline_layout, ///< layers of each chunk (pipeline_layout.hpp)
};

/// One option.
struct Field {
  std::string name;
  std::string doc;
  std::string unit;
  FieldType type = FieldType::any;
  bool list = false;     ///< an array of `type`
  bool required = false; ///< has no default and must be given
  Value default_value;   ///< null: absent unless given
  std::optional<double> min;
  std::optional<double> max;
  bool above_min = false; ///< min itself is excluded
  bool below_max = false; ///< max itself is excluded
  /// A file or folder of the run. A relative one is meant from the folder of the recipe
  /// file that says it, on the command line from the working directory; plugins get it absolute.
  /// Words that begin with `@` are names, and stay as they are.
  bool path = false;
  OnResume on_resume = OnResume::as_section;
  /// The mesh axis that a key of the section `parallel` is about. It does nothing where that
  /// axis has one rank.
  std::optional<MeshAxis> along;
  bool degree = false; ///< the value is the number of ranks along that axis
  /// The value is a number of layers that the model has in addition to its field `layers`, such as
  /// those of an encoder. Pipelines share them out, too.
  bool more_layers = false;
  Mechanism mechanism = Mechanism::none;
  std::optional<Kind> names; ///< kind of plugin that a FieldType::plugin field names
  std::vector<std::string> choices;
  /// The choices are parts of blocks (recompute.hpp); in a recipe those that its architecture
  /// declares are choices, too.
  bool parts = false;
  /// Words that are not accepted yet, with the sentence that says why.
  std::map<std::string, std::string> refused;
  std::shared_ptr<const Schema> item; ///< contents of each table, if they are read into a struct
};

/// A closed list of fields, and the conditions between them.
struct MH_API Schema {
  struct Check {
    std::string field;                                  ///< field at which a failure is reported
    std::function<std::string(const Value& table)> run; ///< empty: fine; else the sentence
  };

  std::vector<Field> fields;
  std::vector<Check> checks;

  [[nodiscard]] const Field* find(std::string_view name) const;

  /// The first that the core reads as this mechanism; null if there is none.
  [[nodiscard]] const Field* find(Mechanism mechanism) const;

  /// The names of an architecture's fields that are numbers of layers, `layers` first.
  [[nodiscard]] std::vector<std::string> layer_fields() const;

  /// The sum of these fields in complete options; 0 if there is none.
  [[nodiscard]] int64_t layers_in(const Value& options) const;
};

/// The problem of one key of a recipe.
struct Problem {
  Origin origin;       ///< place of the key or the value
  std::string key;     ///< "optimizer.lr"
  std::string message; ///< "unknown option `warmpu` in optimizer"
  std::string label;   ///< next to the caret: "did you mean `warmup`?"
  std::string note;    ///< last line: "adamw takes: lr, betas"
};

/// Checks a table against a schema and fills in the defaults.
///
/// `path` is the table's key in the recipe, "optimizer"; problems are appended. Fields whose
/// default is null stay absent. The schema's checks run only if no field of the table was refused.
///
/// Returns: the complete table, keys in the schema's order; values that were refused keep their
///          default
[[nodiscard]] MH_API Value complete(
    const Schema& schema,
    const Value& table,
    const std::string& path,
    std::vector<Problem>& problems
);

/// Like `complete`, and throws one mh::Error that lists every problem.
[[nodiscard]] MH_API Value
complete_or_throw(const Schema& schema, const Value& table, const std::string& path);

/// "integer, at least 1", "one of `a`, `b`", "list of numbers".
[[nodiscard]] MH_API std::string describe(const Field& field);

template <class C>
class Fields;

/// Further properties of the field that `Fields::add` has just made.
class FieldOptions {
public:
  explicit FieldOptions(Field& field)
      : field_(field) {}

  FieldOptions& required() {
    field_.required = true;
    field_.default_value = Value();
    return *this;
  }

  FieldOptions& unit(std::string unit) {
    field_.unit = std::move(unit);
    return *this;
  }

  FieldOptions& at_least(double min) {
    field_.min = min;
    return *this;
  }

  FieldOptions& at_most(double max) {
    field_.max = max;
    return *this;
  }

  FieldOptions& above(double min) {
    field_.min = min;
    field_.above_min = true;
    return *this;
  }

  FieldOptions& below(double max) {
    field_.max = max;
    field_.below_max = true;
    return *this;
  }

  /// Both ends included.
  FieldOptions& range(double min, double max) { return at_least(min).at_most(max); }

  FieldOptions& one_of(std::vector<std::string> choices) {
    field_.choices = std::move(choices);
    return *this;
  }

  /// Parts of blocks: these, and those that the recipe's architecture declares.
  FieldOptions& parts(std::vector<std::string> known) {
    field_.parts = true;
    return one_of(std::move(known));
  }

  /// A file or folder of the run, see Field::path.
  FieldOptions& path() {
    field_.path = true;
    return *this;
  }

  /// A resumed run may have another value than its checkpoint.
  FieldOptions& may_change() {
    field_.on_resume = OnResume::free;
    return *this;
  }

  /// A resumed run must have the value of its checkpoint (or say --allow-change).
  FieldOptions& must_stay() {
    field_.on_resume = OnResume::same;
    return *this;
  }

  /// The number of ranks along a mesh axis, see Field::along.
  FieldOptions& degree(MeshAxis axis) {
    field_.degree = true;
    return along(axis);
  }

  /// Layers in addition to the model's field `layers`, see Field::more_layers.
  FieldOptions& more_layers() {
    field_.more_layers = true;
    return *this;
  }

  /// A key that does nothing where this mesh axis has one rank.
  FieldOptions& along(MeshAxis axis) {
    field_.along = axis;
    return *this;
  }

  /// The core reads it, too.
  FieldOptions& is(Mechanism mechanism) {
    field_.mechanism = mechanism;
    return *this;
  }

  /// The plugin that it names is of this kind.
  FieldOptions& names(Kind kind) {
    field_.names = kind;
    return *this;
  }

  /// `word` gets this sentence instead of the list of choices.
  FieldOptions& refuse(std::string word, std::string sentence) {
    field_.refused.emplace(std::move(word), std::move(sentence));
    return *this;
  }

private:
  Field& field_;
};

/// A field of FieldType::plugin: its name and its options.
[[nodiscard]] MH_API PluginSection plugin_named(const Value& value);

namespace detail {

template <class T>
struct IsVector : std::false_type {};

template <class T>
struct IsVector<std::vector<T>> : std::true_type {};

template <class T>
struct IsOptional : std::false_type {};

template <class T>
struct IsOptional<std::optional<T>> : std::true_type {};

template <class T>
struct IsMap : std::false_type {};

template <class T>
struct IsMap<std::map<std::string, T>> : std::true_type {};

/// A struct that declares its own fields: a table.
template <class T>
concept HasFields = requires(Fields<T>& f) {
  T::fields(f);
};

template <class T>
[[nodiscard]] Fields<T> struct_fields();

template <class T>
void set_type(Field& field) {
  if constexpr (IsOptional<T>::value) {
    set_type<typename T::value_type>(field);
  } else if constexpr (IsVector<T>::value) {
    set_type<typename T::value_type>(field);
    field.list = true;
  } else if constexpr (IsMap<T>::value) {
    field.type = FieldType::table;
  } else if constexpr (std::is_same_v<T, bool>) {
    field.type = FieldType::boolean;
  } else if constexpr (std::is_same_v<T, int64_t>) {
    field.type = FieldType::integer;
  } else if constexpr (std::is_same_v<T, double>) {
    field.type = FieldType::number;
  } else if constexpr (std::is_same_v<T, std::string>) {
    field.type = FieldType::string;
  } else if constexpr (std::is_same_v<T, StringOr<int64_t>>) {
    field.type = FieldType::integer_or_string;
  } else if constexpr (std::is_same_v<T, PluginSection>) {
    field.type = FieldType::plugin;
  } else if constexpr (HasFields<T>) {
    field.type = FieldType::table;
    field.item = std::make_shared<const Schema>(struct_fields<T>().schema());
  } else {
    static_assert(std::is_same_v<T, Value>, "a recipe cannot hold a member of this type");
    field.type = FieldType::any;
  }
}

template <class T>
Value write_value(const T& member) {
  if constexpr (IsOptional<T>::value) {
    return member ? write_value(*member) : Value();
  } else if constexpr (IsVector<T>::value) {
    Value::Array array;
    for (const auto& item : member) {
      array.push_back(write_value<typename T::value_type>(item));
    }
    return array;
  } else if constexpr (IsMap<T>::value) {
    Table table;
    for (const auto& [key, item] : member) {
      table.set(key, write_value(item));
    }
    return table;
  } else if constexpr (std::is_same_v<T, StringOr<int64_t>>) {
    return std::visit([](const auto& held) { return Value(held); }, member);
  } else if constexpr (std::is_same_v<T, PluginSection>) {
    return member.use;
  } else if constexpr (HasFields<T>) {
    return Table(); // its own fields have their defaults
  } else {
    return member;
  }
}

template <class T>
void read_value(const Value& value, T& ret_member) {
  if constexpr (IsOptional<T>::value) {
    ret_member.reset();
    if (!value.is_null()) {
      read_value(value, ret_member.emplace());
    }
  } else if constexpr (IsVector<T>::value) {
    ret_member.clear();
    for (const Value& item : value.as_array()) {
      typename T::value_type member{};
      read_value(item, member);
      ret_member.push_back(std::move(member));
    }
  } else if constexpr (IsMap<T>::value) {
    ret_member.clear();
    for (const auto& entry : value.as_table()) {
      read_value(entry.value, ret_member[entry.key]);
    }
  } else if constexpr (std::is_same_v<T, bool>) {
    ret_member = value.as_boolean();
  } else if constexpr (std::is_same_v<T, int64_t>) {
    ret_member = value.as_integer();
  } else if constexpr (std::is_same_v<T, double>) {
    ret_member = value.as_number();
  } else if constexpr (std::is_same_v<T, std::string>) {
    ret_member = value.as_string();
  } else if constexpr (std::is_same_v<T, StringOr<int64_t>>) {
    if (value.is_string()) {
      ret_member = value.as_string();
    } else {
      ret_member = value.as_integer();
    }
  } else if constexpr (std::is_same_v<T, PluginSection>) {
    ret_member = plugin_named(value);
  } else if constexpr (HasFields<T>) {
    ret_member = struct_fields<T>().read_complete(value);
  } else {
    ret_member = value;
  }
}

} // namespace detail

/// Collects the fields of C: makes the schema, and reads a table into a C.
///
/// Members may be bool, int64_t, double, std::string, StringOr<int64_t>, PluginSection, Value,
/// std::vector or std::optional of these, std::map from std::string, or std::vector of a struct
/// that has `fields` of its own. A default is the member's value in C{}.
template <class C>
class Fields {
public:
  /// Members of a base class of C work too.
  template <class T, class Owner>
  FieldOptions add(std::string name, T Owner::*member, std::string doc) {
    static_assert(std::is_base_of_v<Owner, C>, "the member belongs to another class");
    readers_->push_back([name, member](const Value& table, C& ret_config) {
      if (const Value* value = table.find(name)) {
        detail::read_value(*value, ret_config.*member);
      }
    });
    Field field;
    field.name = std::move(name);
    field.doc = std::move(doc);
    const C defaults{};
    field.default_value = detail::write_value(defaults.*member);
    detail::set_type<T>(field);
    schema_.fields.push_back(std::move(field));
    return FieldOptions(schema_.fields.back());
  }

  /// A condition between fields, reported at `field`: `run(const C&)` returns an empty string if it
  /// holds, else the sentence. Runs on complete tables whose single fields are right.
  template <class Run>
  void check(std::string field, Run run) {
    schema_.checks.push_back(
        {std::move(field),
         [readers = readers_, run = std::move(run)](const Value& table) {
           return std::string(run(read_all(*readers, table)));
         }}
    );
  }

  [[nodiscard]] const Schema& schema() const { return schema_; }

  /// Reads a table; checks it and fills in the defaults first.
  ///
  /// Throws:  mh::Error that lists everything that is wrong
  [[nodiscard]] C read(const Value& table, const std::string& path = "") const {
    return read_complete(complete_or_throw(schema_, table, path));
  }

  /// Reads a table that `complete` has made or would leave as it is; nothing is checked again.
  [[nodiscard]] C read_complete(const Value& table) const { return read_all(*readers_, table); }

private:
  using Readers = std::vector<std::function<void(const Value&, C&)>>;

  static C read_all(const Readers& readers, const Value& table) {
    C config{};
    for (const auto& reader : readers) {
      reader(table, config);
    }
    return config;
  }

  Schema schema_;
  std::shared_ptr<Readers> readers_ = std::make_shared<Readers>();
};

template <class T>
Fields<T> detail::struct_fields() {
  Fields<T> fields;
  T::fields(fields);
  return fields;
}

/// The fields of a plugin class T: T::Config and T::fields.
template <class T>
[[nodiscard]] Fields<typename T::Config> fields_of() {
  Fields<typename T::Config> fields;
  T::fields(fields);
  return fields;
}

} // namespace mh
