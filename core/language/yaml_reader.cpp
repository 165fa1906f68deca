// The YAML that programs dump and people write by hand: mappings and lists by indentation or in
// brackets, plain, quoted and block scalars, anchors. Complex keys (?) are refused.

#include "core/base/text.hpp"
#include "core/language/foreign_yaml.hpp"
#include "core/language/problem.hpp"
#include "core/language/read.hpp"

#include <algorithm>
#include <charconv>
#include <limits>
#include <map>
#include <optional>
#include <utility>

namespace mh {

namespace {

/// The number of a plain scalar; nothing if it is none.
std::optional<Value> number_of(std::string word) {
  std::erase(word, '_');
  const bool plus = word.starts_with('+'), minus = word.starts_with('-');
  const std::string digits = word.substr(plus || minus ? 1 : 0);
  if (digits == ".inf" || digits == ".Inf" || digits == ".INF") {
    const double infinite = std::numeric_limits<double>::infinity();
    return minus ? -infinite : infinite;
  }
  if (word == ".nan" || word == ".NaN" || word == ".NAN") {
    return std::numeric_limits<double>::quiet_NaN();
  }
  if (digits.empty() || (digits[0] != '.' && (digits[0] < '0' || digits[0] > '9'))) {
    return std::nullopt;
  }
  const int base = digits.starts_with("0x") ? 16 : digits.starts_with("0o") ? 8 : 10;
  const std::string whole = (minus ? "-" : "") + digits.substr(base == 10 ? 0 : 2);
  int64_t integer = 0;
  const char* end = whole.data() + whole.size();
  if (const auto read = std::from_chars(whole.data(), end, integer, base);
      read.ec == std::errc() && read.ptr == end) {
    return integer;
  }
  const std::string real = (minus ? "-" : "") + digits;
  double number = 0;
  end = real.data() + real.size();
  const auto read = std::from_chars(real.data(), end, number);
  return read.ec == std::errc() && read.ptr == end ? std::optional<Value>(number) : std::nullopt;
}

/// A plain scalar as PyYAML takes it, but for 1e-5, which is a number here.
Value plain_value(const std::string& word) {
  const auto is = [&](std::initializer_list<std::string_view> words) {
    return std::find(words.begin(), words.end(), word) != words.end();
  };
  if (is({"", "~", "null", "Null", "NULL"})) {
    return {};
  }
  if (is({"true", "True", "TRUE", "yes", "Yes", "YES", "on", "On", "ON"})) {
    return true;
  }
  if (is({"false", "False", "FALSE", "no", "No", "NO", "off", "Off", "OFF"})) {
    return false;
  }
  return number_of(word).value_or(Value(word));
}

size_t nodes_of(const Value& value) {
  size_t count = 1;
  if (value.is_table()) {
    for (const auto& entry : value.as_table()) {
      count += nodes_of(entry.value);
    }
  } else if (value.is_array()) {
    for (const Value& item : value.as_array()) {
      count += nodes_of(item);
    }
  }
  return count;
}

class YamlReader {
public:
  explicit YamlReader(const SourcePtr& source)
      : index_(source)
      , text_(source->text) {}

  Value read() {
    skip();
    while (!ended() && text_[at_] == '%') { // a directive
      at_ = line_end();
      skip();
    }
    if (marks("---")) {
      at_ += 3;
      skip();
    }
    Value tree = ended() || marks("...") ? Value() : block(/*least=*/0);
    if (marks("...")) {
      at_ += 3;
      skip();
    }
    if (marks("---")) {
      fail("a second document begins here, expected one", 3);
    }
    if (!ended()) {
      fail("this belongs to nothing above it: its indentation fits no mapping or list");
    }
    return tree;
  }

private:
  static constexpr size_t kMostNodes = 100'000; // that aliases may stand for

  [[noreturn]] void fail(const std::string& message, size_t length = 1) const {
    fail_at(std::min(at_, text_.size()), message, length);
  }

  [[noreturn]] void fail_at(size_t begin, const std::string& message, size_t length = 1) const {
    throw RecipeError({{index_.at(begin, begin + length), "", message, "", ""}});
  }

  [[nodiscard]] bool ended() const { return at_ >= text_.size(); }

  [[nodiscard]] char peek(size_t ahead = 0) const {
    return at_ + ahead < text_.size() ? text_[at_ + ahead] : '\0';
  }

  [[nodiscard]] bool blank(size_t at) const {
    return at >= text_.size() || text_[at] == ' ' || text_[at] == '\n' || text_[at] == '\t' ||
           text_[at] == '\r';
  }

  [[nodiscard]] size_t line_end() const { return std::min(text_.find('\n', at_), text_.size()); }

  [[nodiscard]] size_t column() const {
    const size_t newline = at_ == 0 ? std::string::npos : text_.rfind('\n', at_ - 1);
    return newline == std::string::npos ? at_ : at_ - newline - 1;
  }

  /// Whether a line begins here with a mark of documents.
  [[nodiscard]] bool marks(std::string_view mark) const {
    return column() == 0 && text_.compare(at_, mark.size(), mark) == 0 && blank(at_ + mark.size());
  }

  /// Goes to the next character that is no blank, line break or comment.
  void skip() {
    for (; !ended(); ++at_) {
      const char c = text_[at_];
      if (c == '#' && (at_ == 0 || blank(at_ - 1))) {
        at_ = line_end();
      } else if (c == '\t' && text_.find_first_not_of(" \t\r\n", line_start()) > at_ && text_.find_first_not_of(" \t\r", at_) < line_end()) {
        fail("a tab in the indentation, expected blanks");
      } else if (!blank(at_)) {
        return;
      }
      if (ended()) {
        return;
      }
    }
  }

  [[nodiscard]] size_t line_start() const { return at_ - column(); }

  /// Goes on in this line; true if it holds nothing more.
  bool line_is_over() {
    while (!ended() && (peek() == ' ' || peek() == '\t' || peek() == '\r')) {
      ++at_;
    }
    return ended() || peek() == '\n' || (peek() == '#' && blank(at_ - 1));
  }

  [[nodiscard]] bool is_item() const { return peek() == '-' && blank(at_ + 1); }

  /// Where the key that begins here ends, the position of its colon; nothing if there is none.
  std::optional<size_t> key_end() const {
    size_t end = at_;
    if (peek() == '"' || peek() == '\'') {
      for (++end; end < text_.size() && text_[end] != '\n'; ++end) {
        if (peek() == '"' && text_[end] == '\\') {
          ++end;
        } else if (text_[end] == peek()) {
          if (peek() == '\'' && end + 1 < text_.size() && text_[end + 1] == '\'') {
            ++end;
          } else {
            break;
          }
        }
      }
      end = std::min(text_.find_first_not_of(" \t", end + 1), text_.size());
      return end < text_.size() && text_[end] == ':' && blank(end + 1) ? std::optional(end)
                                                                       : std::nullopt;
    }
    if (std::string_view("[]{},#&*!|>%@`").find(peek()) != std::string_view::npos) {
      return std::nullopt;
    }
    for (; end < text_.size() && text_[end] != '\n'; ++end) {
      if (text_[end] == ':' && blank(end + 1)) {
        return end;
      }
      if (text_[end] == '#' && blank(end - 1)) {
        return std::nullopt;
      }
    }
    return std::nullopt;
  }

  /// The anchor (&NAME) and the tag (!NAME) of a node, which stand before it.
  struct Properties {
    std::string anchor;
    bool text = false; ///< !!str
  };

  Properties properties() {
    Properties found;
    while (peek() == '&' || peek() == '!') {
      const char mark = peek();
      const size_t begin = ++at_;
      while (!ended() && !blank(at_) && std::string_view(",]}").find(peek()) == std::string::npos) {
        ++at_;
      }
      const std::string word = text_.substr(begin, at_ - begin);
      if (mark == '&') {
        found.anchor = word;
      } else {
        found.text = word == "!str" || found.text;
      }
      while (peek() == ' ') {
        ++at_;
      }
    }
    return found;
  }

  Value kept(Value value, const Properties& properties, size_t begin) {
    if (value.origin.line == 0) {
      value.origin = index_.at(begin, std::max(at_, begin + 1));
    }
    if (!properties.anchor.empty()) {
      anchors_[properties.anchor] = value;
    }
    return value;
  }

  Value alias() {
    const size_t begin = at_++;
    while (!ended() && !blank(at_) && std::string_view(",]}").find(peek()) == std::string::npos) {
      ++at_;
    }
    const auto found = anchors_.find(text_.substr(begin + 1, at_ - begin - 1));
    if (found == anchors_.end()) {
      fail_at(begin, "no anchor of this name stands above", at_ - begin);
    }
    copied_ += nodes_of(found->second);
    if (copied_ > kMostNodes) {
      fail_at(begin, "aliases stand for more than 100,000 values", at_ - begin);
    }
    return found->second;
  }

  /// A node that begins here, of which further lines have at least `least` blanks. Ends at what
  /// follows.
  Value block(size_t least) {
    if (++depth_ > kDeepest) {
      fail("tables nested deeper than " + std::to_string(kDeepest));
    }
    const size_t begin = at_;
    const Properties mine = properties();
    if (line_is_over()) { // what they belong to stands below
      skip();
      const bool there = !ended() && column() >= least && !marks("---") && !marks("...");
      --depth_;
      return kept(there ? block(least) : Value(), mine, begin);
    }
    if (peek() == '?' && blank(at_ + 1)) {
      fail("a key that is no word (?), expected KEY: VALUE");
    }
    Value value = is_item()   ? sequence(column())
                  : key_end() ? mapping(column())
                              : single(least, mine.text);
    --depth_;
    return kept(std::move(value), mine, begin);
  }

  Value sequence(size_t indent) {
    Value::Array items;
    const size_t begin = at_;
    while (!ended() && column() == indent && is_item()) {
      ++at_;
      items.push_back(below(indent, /*list=*/false));
    }
    Value value(std::move(items));
    value.origin = index_.at(begin, begin + 1);
    return value;
  }

  /// The value behind the dash or the colon of a node at `indent`. `list`: whose list may stand
  /// below it without further indentation.
  Value below(size_t indent, bool list) {
    if (!line_is_over()) {
      return list ? inline_value(indent + 1) : block(indent + 1);
    }
    const size_t end = at_;
    skip();
    const bool deeper = !ended() && column() > indent;
    const bool own = list && !ended() && column() == indent && is_item();
    if ((deeper || own) && !marks("---") && !marks("...")) {
      return deeper ? block(indent + 1) : sequence(indent);
    }
    Value nothing;
    nothing.origin = index_.at(end > 0 ? end - 1 : 0, end);
    return nothing;
  }

  /// A value in its key's line, where no other key may stand.
  Value inline_value(size_t least) {
    const size_t begin = at_;
    const Properties mine = properties();
    if (line_is_over()) {
      return kept(below(least - 1, /*list=*/true), mine, begin);
    }
    if (const auto second = key_end()) {
      fail_at(*second, "a second colon in a line, expected quotes around such a text");
    }
    return kept(single(least, mine.text), mine, begin);
  }

  Value mapping(size_t indent) {
    Table table;
    std::vector<Value> merged;
    const size_t begin = at_;
    while (!ended() && column() == indent && !marks("---") && !marks("...")) {
      const auto end = key_end();
      if (!end || is_item()) {
        fail("expected KEY: VALUE");
      }
      const size_t key_begin = at_;
      const std::string key = peek() == '"' || peek() == '\'' ? quoted() : plain(*end);
      const Origin origin = index_.at(key_begin, *end);
      at_ = *end + 1;
      Value value = below(indent, /*list=*/true);
      if (key == "<<") {
        merged.push_back(std::move(value));
      } else if (table.find(key) != nullptr) {
        throw RecipeError({{origin, "", "the key `" + key + "` is given twice", "", ""}});
      } else {
        table.set(key, std::move(value), origin);
      }
    }
    for (const Value& more : merged) {
      merge_into(table, more);
    }
    Value value(std::move(table));
    value.origin = index_.at(begin, begin + 1);
    return value;
  }

  /// `<<`: what a table, or a list of them, has and this one lacks.
  static void merge_into(Table& ret_table, const Value& more) {
    if (more.is_array()) {
      for (const Value& one : more.as_array()) {
        merge_into(ret_table, one);
      }
    } else if (more.is_table()) {
      for (const auto& entry : more.as_table()) {
        if (ret_table.find(entry.key) == nullptr) {
          ret_table.set(entry.key, entry.value, entry.key_origin);
        }
      }
    }
  }

  /// A scalar, an alias or what is in brackets; ends at what follows in a further line.
  Value single(size_t least, bool text) {
    const size_t begin = at_;
    Value value;
    if (peek() == '|' || peek() == '>') {
      value = literal(least);
      skip();
      return value;
    }
    if (peek() == '[' || peek() == '{') {
      value = flow();
    } else if (peek() == '*') {
      value = alias();
    } else if (peek() == '"' || peek() == '\'') {
      value = quoted();
    } else {
      const std::string word = folded(least);
      value = text ? Value(word) : plain_value(word);
    }
    if (value.origin.line == 0) {
      value.origin = index_.at(begin, at_);
    }
    if (!line_is_over()) {
      fail("this stands behind a value, expected the line to end");
    }
    skip();
    return value;
  }

  /// The text from here to `end`, or to a comment, without blanks around it.
  std::string plain(size_t end) {
    const size_t begin = at_;
    for (size_t i = begin; i < end; ++i) {
      if (text_[i] == '#' && i > begin && blank(i - 1)) {
        end = i;
      }
    }
    at_ = end;
    const size_t last = text_.find_last_not_of(" \t\r", end - 1);
    return end == begin || last < begin || last == std::string::npos
               ? ""
               : text_.substr(begin, last + 1 - begin);
  }

  /// A plain scalar and its further lines, which are indented by `least` and hold no key.
  std::string folded(size_t least) {
    if (std::string_view("@`%").find(peek()) != std::string_view::npos) {
      fail("a value cannot begin with this character, expected quotes around it");
    }
    std::string word = plain(line_end());
    while (!ended() && peek() == '\n') {
      const size_t end = at_;
      size_t breaks = 0;
      while (peek() == '\n') {
        ++breaks;
        ++at_;
        while (peek() == ' ') {
          ++at_;
        }
      }
      if (ended() || column() < least || least == 0 || peek() == '#' || peek() == '\r' ||
          marks("---") || key_end()) {
        at_ = end;
        return word;
      }
      word += (breaks > 1 ? std::string(breaks - 1, '\n') : " ") + plain(line_end());
    }
    return word;
  }

  std::string quoted() {
    const char quote = peek();
    const size_t begin = at_++;
    std::string word;
    while (true) {
      if (ended()) {
        fail_at(begin, "this quote has no end");
      }
      const char c = text_[at_++];
      if (c == quote && quote == '\'' && peek() == '\'') {
        word += text_[at_++];
      } else if (c == quote) {
        return word;
      } else if (c == '\\' && quote == '"') {
        escape(word);
      } else if (c == '\n') {
        fold(word);
      } else {
        word += c;
      }
    }
  }

  /// A line break within quotes: a blank, or as many breaks as there are empty lines.
  void fold(std::string& ret_word) {
    ret_word.erase(ret_word.find_last_not_of(" \t\r") + 1);
    size_t empty = 0;
    while (blank(at_) && !ended()) {
      empty += peek() == '\n' ? 1 : 0;
      ++at_;
    }
    ret_word += empty > 0 ? std::string(empty, '\n') : " ";
  }

  void escape(std::string& ret_word) {
    const char c = ended() ? '\0' : text_[at_++];
    const size_t digits = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
    constexpr std::string_view kFrom = "0abtnvfre", kTo("\0\a\b\t\n\v\f\r\x1b", 9);
    if (c == '\n') { // the line goes on
      while (peek() == ' ' || peek() == '\t') {
        ++at_;
      }
    } else if (digits > 0) {
      uint32_t code = 0;
      const char* begin = text_.data() + std::min(at_, text_.size());
      const size_t count = std::min(digits, text_.size() - std::min(at_, text_.size()));
      const auto read = std::from_chars(begin, begin + count, code, 16);
      if (read.ptr != begin + digits || code > 0x10FFFF) {
        fail("this is no character's number", digits);
      }
      at_ += digits;
      ret_word += utf8(code);
    } else if (const size_t known = kFrom.find(c); known != std::string_view::npos) {
      ret_word += kTo[known];
    } else if (std::string_view("\"\\/ _NLP\t").find(c) != std::string_view::npos) {
      ret_word += c == '_'   ? "\xC2\xA0"
                  : c == 'N' ? "\xC2\x85"
                  : c == 'L' ? "\xE2\x80\xA8"
                  : c == 'P' ? "\xE2\x80\xA9"
                             : std::string(1, c);
    } else {
      --at_;
      fail("this is no escape of YAML");
    }
  }

  static std::string utf8(uint32_t code) {
    const auto tail = [code](int shift) {
      return static_cast<char>(0x80 | (code >> shift & 0x3F));
    };
    if (code < 0x80) {
      return {static_cast<char>(code)};
    }
    if (code < 0x800) {
      return {static_cast<char>(0xC0 | code >> 6), tail(0)};
    }
    if (code < 0x10000) {
      return {static_cast<char>(0xE0 | code >> 12), tail(6), tail(0)};
    }
    return {static_cast<char>(0xF0 | code >> 18), tail(12), tail(6), tail(0)};
  }

  /// | and >: the lines below that are indented.
  Value literal(size_t least) {
    const size_t begin = at_;
    const bool folds = text_[at_++] == '>';
    char chomp = '\0';
    size_t indent = 0;
    for (; peek() == '-' || peek() == '+' || (peek() >= '1' && peek() <= '9'); ++at_) {
      (peek() == '-' || peek() == '+' ? chomp = peek() : indent = least - 1 + (peek() - '0'));
    }
    if (!line_is_over()) {
      fail("this stands behind the mark of a text of several lines, expected the line to end");
    }
    at_ = line_end();
    std::string text;
    bool more = false; // the line before was indented further, and is not folded
    size_t empty = 0;
    while (!ended()) {
      const size_t start = at_ + 1;
      const size_t end = std::min(text_.find('\n', start), text_.size());
      const size_t first = std::min(text_.find_first_not_of(' ', start), end);
      const bool is_empty = first == end || (text_[first] == '\r' && first + 1 == end);
      if (start >= text_.size() || (!is_empty && first - start < std::max(indent, least))) {
        break;
      }
      indent = indent == 0 && !is_empty ? first - start : indent;
      at_ = end;
      if (is_empty) {
        ++empty;
        continue;
      }
      std::string line = text_.substr(start + indent, end - start - indent);
      line.erase(line.find_last_not_of('\r') + 1);
      const bool further = line.starts_with(' ');
      if (text.empty()) {
        text = std::string(empty, '\n');
      } else if (folds && !more && !further) {
        text += empty > 0 ? std::string(empty, '\n') : " ";
      } else {
        text += std::string(empty + 1, '\n');
      }
      text += line;
      more = further;
      empty = 0;
    }
    text += chomp == '-' || text.empty() ? "" : chomp == '+' ? std::string(empty + 1, '\n') : "\n";
    Value value(std::move(text));
    value.origin = index_.at(begin, begin + 1);
    return value;
  }

  /// A list or a table in brackets, over as many lines as it takes.
  Value flow() {
    if (++depth_ > kDeepest) {
      fail("tables nested deeper than " + std::to_string(kDeepest));
    }
    const size_t begin = at_;
    const bool list = text_[at_++] == '[';
    const char close = list ? ']' : '}';
    Value::Array items;
    Table table;
    for (skip(); peek() != close; skip()) {
      if (ended()) {
        fail_at(begin, "this bracket has no end");
      }
      const size_t key_begin = at_;
      Value item = flow_value();
      skip();
      if (peek() == ':' && (!list || blank(at_ + 1))) {
        ++at_;
        skip();
        const std::string key = item.is_string() ? item.as_string() : to_text(item);
        const Origin origin = index_.at(key_begin, key_begin + key.size());
        Value value = peek() == ',' || peek() == close ? Value() : flow_value();
        if (list) {
          Table single;
          single.set(key, std::move(value), origin);
          items.emplace_back(std::move(single));
        } else {
          table.set(key, std::move(value), origin);
        }
      } else if (list) {
        items.push_back(std::move(item));
      } else {
        table.set(item.is_string() ? item.as_string() : to_text(item), Value(), item.origin);
      }
      skip();
      if (peek() == ',') {
        ++at_;
      } else if (peek() != close) {
        ended() ? fail_at(begin, "this bracket has no end") : fail("expected a comma or a bracket");
      }
    }
    ++at_;
    --depth_;
    Value value = list ? Value(std::move(items)) : Value(std::move(table));
    value.origin = index_.at(begin, at_);
    return value;
  }

  Value flow_value() {
    const size_t begin = at_;
    const Properties mine = properties();
    skip();
    Value value;
    if (peek() == '[' || peek() == '{') {
      value = flow();
    } else if (peek() == '*') {
      value = alias();
    } else if (peek() == '"' || peek() == '\'') {
      value = quoted();
    } else {
      size_t end = at_;
      while (end < text_.size() && text_[end] != '\n' &&
             std::string_view(",[]{}").find(text_[end]) == std::string_view::npos &&
             !(text_[end] == ':' && (blank(end + 1) || std::string_view(",]}").find(text_[end + 1]
                                                       ) != std::string_view::npos))) {
        ++end;
      }
      if (end == at_ && !(end < text_.size() && text_[end] == ',')) {
        fail("expected a value");
      }
      const std::string word = end == at_ ? "" : plain(end);
      value = mine.text ? Value(word) : plain_value(word);
    }
    return kept(std::move(value), mine, begin);
  }

  LineIndex index_;
  const std::string& text_;
  size_t at_ = 0;
  int depth_ = 0;
  std::map<std::string, Value> anchors_;
  size_t copied_ = 0;
};

} // namespace

Value read_foreign_yaml(const SourcePtr& source) {
  Value tree = YamlReader(source).read();
  if (tree.is_null()) {
    tree.origin = {source, 0, 0, 0};
  }
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

} // namespace mh
