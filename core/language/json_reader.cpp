#include "core/language/foreign_json.hpp"
#include "core/language/problem.hpp"
#include "core/language/read.hpp"

#include <nlohmann/json.hpp>

namespace mh {

namespace {

/// Walks the text and lets the handler know how far the parser has come.
class JsonCursor {
public:
  using difference_type = std::ptrdiff_t;
  using value_type = char;
  using pointer = const char*;
  using reference = const char&;
  using iterator_category = std::input_iterator_tag;

  JsonCursor(const char* at, size_t* consumed)
      : at_(at)
      , consumed_(consumed) {}

  reference operator*() const { return *at_; }

  JsonCursor& operator++() {
    ++at_;
    ++*consumed_;
    return *this;
  }

  bool operator==(const JsonCursor& other) const { return at_ == other.at_; }

  bool operator!=(const JsonCursor& other) const { return at_ != other.at_; }

private:
  const char* at_;
  size_t* consumed_;
};

/// Builds the tree from nlohmann's events.
class JsonReader {
public:
  /// `null` says whether null is a value.
  JsonReader(const SourcePtr& source, bool null)
      : index_(source)
      , null_(null) {}

  Value read() {
    const std::string& text = index_.source()->text;
    const char* begin = text.data();
    nlohmann::json::sax_parse(
        JsonCursor(begin, &consumed_), JsonCursor(begin + text.size(), &consumed_), this
    );
    return std::move(root_);
  }

  bool null() {
    return null_ ? scalar(Value()) : fail("null is no value of a recipe: leave the key out");
  }

  bool boolean(bool value) { return scalar(value); }

  bool number_integer(int64_t value) { return number(value); }

  bool number_unsigned(uint64_t value) {
    if (value > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
      return fail("this integer needs more than 64 bits");
    }
    return number(static_cast<int64_t>(value));
  }

  bool number_float(double value, const std::string&) { return number(value); }

  bool string(std::string& value) { return scalar(value); }

  bool binary(nlohmann::json::binary_t&) { return fail("a recipe holds no binary data"); }

  bool start_object(size_t) { return open(Table{}); }

  bool start_array(size_t) { return open(Value::Array{}); }

  bool end_object() { return close(); }

  bool end_array() { return close(); }

  bool key(std::string& name) {
    if (open_.back().find(name)) {
      return fail("the key `" + name + "` is given twice");
    }
    keys_.back() = {name, token()};
    return true;
  }

  bool parse_error(size_t position, const std::string&, const nlohmann::json::exception& error) {
    const std::string what =
        error.what(); // "[json.exception.parse_error.101] parse error at ...: text"
    const size_t colon = what.find(": ");
    const size_t at = position == 0 ? 0 : position - 1;
    throw RecipeError(
        {{index_.at(at, at + 1),
          "",
          "this is no JSON: " + (colon == std::string::npos ? what : what.substr(colon + 2)),
          "",
          ""}}
    );
  }

private:
  struct Key {
    std::string name;
    Origin origin;
  };

  [[noreturn]] bool fail(const std::string& message) {
    throw RecipeError({{token(), "", message, "", ""}});
  }

  static bool part_of_word(char c) {
    return std::isalnum(static_cast<unsigned char>(c)) || c == '.' || c == '-' || c == '+';
  }

  /// The token that ends where the parser stands: a string, a bracket or a word.
  Origin token() const { return token_before(consumed_); }

  Origin token_before(size_t end) const {
    const std::string& text = index_.source()->text;
    end = std::min(end, text.size());
    if (end == 0) {
      return index_.at(0, 1);
    }
    size_t begin = end - 1;
    if (text[begin] == '"') {
      const auto escaped = [&text](size_t quote) {
        size_t slashes = 0;
        while (slashes < quote && text[quote - 1 - slashes] == '\\') {
          ++slashes;
        }
        return slashes % 2 == 1;
      };
      do {
        begin = begin == 0 ? 0 : begin - 1;
      } while (begin > 0 && (text[begin] != '"' || escaped(begin)));
    } else if (part_of_word(text[begin])) {
      while (begin > 0 && part_of_word(text[begin - 1])) {
        --begin;
      }
    }
    return index_.at(begin, end);
  }

  /// The parser has read one byte more than the number, unless the text ends there.
  bool number(Value value) {
    const bool beyond = !part_of_word(index_.source()->text[consumed_ - 1]);
    value.origin = token_before(consumed_ - (beyond ? 1 : 0));
    add(std::move(value));
    return true;
  }

  bool scalar(Value value) {
    value.origin = token();
    add(std::move(value));
    return true;
  }

  bool open(Value container) {
    if (open_.size() > static_cast<size_t>(kDeepest)) {
      fail("tables nested deeper than " + std::to_string(kDeepest));
    }
    container.origin = token();
    open_.push_back(std::move(container));
    keys_.emplace_back();
    return true;
  }

  bool close() {
    Value done = std::move(open_.back());
    open_.pop_back();
    keys_.pop_back();
    add(std::move(done));
    return true;
  }

  void add(Value value) {
    if (open_.empty()) {
      root_ = std::move(value);
    } else if (open_.back().is_table()) {
      open_.back().as_table().set(keys_.back().name, std::move(value), keys_.back().origin);
    } else {
      open_.back().as_array().push_back(std::move(value));
    }
  }

  LineIndex index_;
  bool null_;
  size_t consumed_ = 0;
  std::vector<Value> open_;
  std::vector<Key> keys_;
  Value root_;
};

Value read_table(const SourcePtr& source, bool null) {
  Value tree = JsonReader(source, null).read();
  if (!tree.is_table()) {
    throw RecipeError(
        {{tree.origin,
          "",
          "the file holds " + describe(tree.type()) + ", expected a table",
          "",
          ""}}
    );
  }
  return tree;
}

} // namespace

Value read_json(const SourcePtr& source) {
  return read_table(source, /*null=*/false);
}

Value read_foreign_json(const SourcePtr& source) {
  return read_table(source, /*null=*/true);
}

} // namespace mh
