#include "megahost/value.hpp"

#include "core/base/text.hpp"
#include "megahost/error.hpp"

#include <algorithm>
#include <utility>

namespace mh {

std::string Origin::where() const {
  if (!source) {
    return "";
  }
  std::string text = source->name;
  if (line > 0) {
    text += ":" + std::to_string(line);
    if (column > 0) {
      text += ":" + std::to_string(column);
    }
  }
  return text;
}

const std::string& Origin::layer() const {
  static const std::string none;
  return source ? source->layer : none;
}

Table::Table() = default;
Table::Table(const Table& other) = default;
Table::Table(Table&& other) noexcept = default;
Table& Table::operator=(const Table& other) = default;
Table& Table::operator=(Table&& other) noexcept = default;
Table::~Table() = default;

Table::Table(std::initializer_list<Entry> entries) {
  for (const Entry& entry : entries) {
    set(entry.key, entry.value, entry.key_origin);
  }
}

const Table::Entry* Table::entry(std::string_view key) const {
  const auto found = std::find_if(entries_.begin(), entries_.end(), [key](const Entry& entry) {
    return entry.key == key;
  });
  return found == entries_.end() ? nullptr : &*found;
}

const Value* Table::find(std::string_view key) const {
  const Entry* found = entry(key);
  return found ? &found->value : nullptr;
}

Value* Table::find(std::string_view key) {
  return const_cast<Value*>(std::as_const(*this).find(key));
}

Value& Table::set(std::string key, Value value, Origin key_origin) {
  if (const Entry* found = entry(key)) {
    Entry& old = entries_[static_cast<size_t>(found - entries_.data())];
    old.value = std::move(value);
    old.key_origin = std::move(key_origin);
    return old.value;
  }
  entries_.push_back({std::move(key), std::move(value), std::move(key_origin)});
  return entries_.back().value;
}

void Table::erase(std::string_view key) {
  std::erase_if(entries_, [key](const Entry& entry) { return entry.key == key; });
}

Value Table::take(std::string_view key) {
  const Value* found = find(key);
  Value value = found == nullptr ? Value() : *found;
  erase(key);
  return value;
}

bool Table::operator==(const Table& other) const {
  return size() == other.size() && std::all_of(begin(), end(), [&other](const Entry& entry) {
           const Value* theirs = other.find(entry.key);
           return theirs && *theirs == entry.value;
         });
}

size_t Table::size() const {
  return entries_.size();
}

const Table::Entry* Table::begin() const {
  return entries_.data();
}

const Table::Entry* Table::end() const {
  return entries_.data() + entries_.size();
}

Table::Entry* Table::begin() {
  return entries_.data();
}

Table::Entry* Table::end() {
  return entries_.data() + entries_.size();
}

Value::Value() = default;

Value::Value(bool value)
    : data_(value) {}

Value::Value(int value)
    : data_(static_cast<int64_t>(value)) {}

Value::Value(int64_t value)
    : data_(value) {}

Value::Value(double value)
    : data_(value) {}

Value::Value(const char* value)
    : data_(std::string(value)) {}

Value::Value(std::string value)
    : data_(std::move(value)) {}

Value::Value(Array value)
    : data_(std::move(value)) {}

Value::Value(Table value)
    : data_(std::move(value)) {}

namespace {

[[noreturn]] void wrong_type(const Value& value, const std::string& expected) {
  throw Error(ErrorParts{
      value.origin.where(), describe(value.type()) + " " + to_text(value), expected, ""});
}

} // namespace

bool Value::as_boolean() const {
  if (!is_boolean()) {
    wrong_type(*this, "true or false");
  }
  return std::get<bool>(data_);
}

int64_t Value::as_integer() const {
  if (const auto* number = std::get_if<double>(&data_)) {
    if (const auto integer = exact_integer(*number)) {
      return *integer;
    }
  }
  if (!is_integer()) {
    wrong_type(*this, "an integer");
  }
  return std::get<int64_t>(data_);
}

double Value::as_number() const {
  if (is_integer()) {
    return static_cast<double>(std::get<int64_t>(data_));
  }
  if (!is_number()) {
    wrong_type(*this, "a number");
  }
  return std::get<double>(data_);
}

const std::string& Value::as_string() const {
  if (!is_string()) {
    wrong_type(*this, "a string");
  }
  return std::get<std::string>(data_);
}

const Value::Array& Value::as_array() const {
  if (!is_array()) {
    wrong_type(*this, "a list");
  }
  return std::get<Array>(data_);
}

Value::Array& Value::as_array() {
  return const_cast<Array&>(std::as_const(*this).as_array());
}

const Table& Value::as_table() const {
  if (!is_table()) {
    wrong_type(*this, "a table");
  }
  return std::get<Table>(data_);
}

Table& Value::as_table() {
  return const_cast<Table&>(std::as_const(*this).as_table());
}

const Value* Value::find(std::string_view key) const {
  const auto* table = std::get_if<Table>(&data_);
  return table ? table->find(key) : nullptr;
}

const Value* Value::find_path(std::string_view path) const {
  const Value* value = this;
  while (value && !path.empty()) {
    const size_t dot = path.find('.');
    value = value->find(path.substr(0, dot));
    path = dot == std::string_view::npos ? "" : path.substr(dot + 1);
  }
  return value;
}

bool Value::operator==(const Value& other) const {
  return data_ == other.data_;
}

std::string describe(Value::Type type) {
  static constexpr const char* kNames[] = {
      "nothing", "a boolean", "an integer", "a number", "a string", "a list", "a table"};
  return kNames[static_cast<size_t>(type)];
}

std::string to_text(const Value& value) {
  switch (value.type()) {
  case Value::Type::null:
    return "null";
  case Value::Type::boolean:
    return value.as_boolean() ? "true" : "false";
  case Value::Type::integer:
    return std::to_string(value.as_integer());
  case Value::Type::number:
    return number_text(value.as_number());
  case Value::Type::string:
    return string_text(value.as_string());
  case Value::Type::array: {
    std::string text;
    for (const Value& item : value.as_array()) {
      text += (text.empty() ? "" : ", ") + to_text(item);
    }
    return "[" + text + "]";
  }
  case Value::Type::table: {
    std::string text;
    for (const auto& entry : value.as_table()) {
      text += (text.empty() ? " " : ", ") + key_text(entry.key) + " = " + to_text(entry.value);
    }
    return text.empty() ? "{}" : "{" + text + " }";
  }
  }
  return "";
}

} // namespace mh
