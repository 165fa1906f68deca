#pragma once
/// The tree that recipes are made of: what TOML can say, each value with the place it came from.
///
/// ```cpp
/// mh::Value options = mh::Table{{"lr", 3e-4}, {"betas", mh::Value::Array{0.9, 0.95}}};
/// double lr = options.find("lr")->as_number();
/// ```

#include "megahost/export.hpp"

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace mh {

/// A text that values were read from.
struct Source {
  std::string name;  ///< file name as the user wrote it, or "--set"
  std::string text;  ///< whole text, for messages that quote a line
  std::string layer; ///< "default", "preset llama2-7b", "recipe", "--set", ...
};

/// The place where a value was written.
struct Origin {
  std::shared_ptr<const Source> source; ///< null for values made by a program
  int line = 0;                         ///< from 1; 0 if not known
  int column = 0;                       ///< from 1, in bytes; 0 if only the line is known
  int length = 0;                       ///< bytes on that line

  /// "recipes/a.toml:3:7", shorter where less is known; empty without a source.
  [[nodiscard]] MH_API std::string where() const;
  /// The source's layer; empty without a source.
  [[nodiscard]] MH_API const std::string& layer() const;
};

class Value;

/// Keys and values in the order in which they were written; keys are unique.
class MH_API Table {
public:
  struct Entry;

  Table();
  Table(std::initializer_list<Entry> entries);
  Table(const Table& other);
  Table(Table&& other) noexcept;
  Table& operator=(const Table& other);
  Table& operator=(Table&& other) noexcept;
  ~Table();

  [[nodiscard]] const Value* find(std::string_view key) const;
  [[nodiscard]] Value* find(std::string_view key);
  [[nodiscard]] const Entry* entry(std::string_view key) const;
  /// Replaces the value, or appends the key.
  Value& set(std::string key, Value value, Origin key_origin = {});
  void erase(std::string_view key);
  /// Erases a key and returns its value; null if there is none.
  Value take(std::string_view key);
  [[nodiscard]] size_t size() const;

  [[nodiscard]] bool empty() const { return size() == 0; }

  /// Same keys and values; their order and origins do not matter.
  [[nodiscard]] bool operator==(const Table& other) const;

  [[nodiscard]] const Entry* begin() const;
  [[nodiscard]] const Entry* end() const;
  [[nodiscard]] Entry* begin();
  [[nodiscard]] Entry* end();

private:
  std::vector<Entry> entries_;
};

/// Null, boolean, integer, number, string, array or table.
///
/// Throws:  the `as_` functions throw mh::Error with the value's place if it has another type
class MH_API Value {
public:
  using Array = std::vector<Value>;
  enum class Type : uint8_t { null, boolean, integer, number, string, array, table };

  Value();
  Value(bool value);
  Value(int value);
  Value(int64_t value);
  Value(double value);
  Value(const char* value);
  Value(std::string value);
  Value(Array value);
  Value(Table value);

  [[nodiscard]] Type type() const { return static_cast<Type>(data_.index()); }

  [[nodiscard]] bool is_null() const { return type() == Type::null; }

  [[nodiscard]] bool is_boolean() const { return type() == Type::boolean; }

  [[nodiscard]] bool is_integer() const { return type() == Type::integer; }

  /// True for integers too.
  [[nodiscard]] bool is_number() const { return type() == Type::number || is_integer(); }

  [[nodiscard]] bool is_string() const { return type() == Type::string; }

  [[nodiscard]] bool is_array() const { return type() == Type::array; }

  [[nodiscard]] bool is_table() const { return type() == Type::table; }

  [[nodiscard]] bool as_boolean() const;
  /// Accepts a number with an integral value.
  [[nodiscard]] int64_t as_integer() const;
  [[nodiscard]] double as_number() const;
  [[nodiscard]] const std::string& as_string() const;
  [[nodiscard]] const Array& as_array() const;
  [[nodiscard]] Array& as_array();
  [[nodiscard]] const Table& as_table() const;
  [[nodiscard]] Table& as_table();

  /// The member of a table; null if this is no table or lacks the key.
  [[nodiscard]] const Value* find(std::string_view key) const;
  /// The member along a dotted path, "optimizer.lr"; null as above.
  [[nodiscard]] const Value* find_path(std::string_view path) const;

  /// Same types and contents; origins and the order of keys do not matter.
  [[nodiscard]] bool operator==(const Value& other) const;

  Origin origin;

private:
  std::variant<std::monostate, bool, int64_t, double, std::string, Array, Table> data_;
};

struct Table::Entry {
  std::string key;
  Value value;
  Origin key_origin = {};
};

/// "boolean", "integer", ... with an article: "a string", "an integer".
[[nodiscard]] MH_API std::string describe(Value::Type type);
/// The value as TOML writes it on one line, floats in their shortest exact form.
[[nodiscard]] MH_API std::string to_text(const Value& value);

} // namespace mh
