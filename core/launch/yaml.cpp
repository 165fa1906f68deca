#include "core/launch/yaml.hpp"

#include "core/base/text.hpp"

#include <algorithm>
#include <cctype>
#include <string_view>

namespace mh {

namespace {

/// A key that begins with it is none: its text is a comment.
constexpr char kComment = '#';

/// Whether YAML reads these characters as this string, and as nothing else. Strict: what is not
/// plainly a word or a path is quoted.
bool is_plain(const std::string& text) {
  static constexpr std::string_view kWords[] = {
      "y", "n", "yes", "no", "on", "off", "true", "false", "null"};
  std::string lower = text;
  std::transform(lower.begin(), lower.end(), lower.begin(), [](unsigned char c) {
    return static_cast<char>(std::tolower(c));
  });
  const auto ordinary = [](unsigned char c) {
    return std::isalnum(c) != 0 ||
           std::string_view("-_./:@%+=").find(static_cast<char>(c)) != std::string_view::npos;
  };
  const auto first = static_cast<unsigned char>(text.empty() ? ' ' : text.front());
  return (std::isalpha(first) != 0 || first == '/') && text.back() != ':' &&
         std::all_of(text.begin(), text.end(), ordinary) &&
         std::find(std::begin(kWords), std::end(kWords), lower) == std::end(kWords);
}

std::string scalar(const Value& value) {
  if (value.is_string()) {
    const std::string& text = value.as_string();
    return is_plain(text) ? text : string_text(text);
  }
  if (value.is_boolean()) {
    return value.as_boolean() ? "true" : "false";
  }
  return value.is_integer()  ? std::to_string(value.as_integer())
         : value.is_number() ? number_text(value.as_number())
                             : "null";
}

class YamlWriter {
public:
  void table(const Table& table, size_t indent, bool in_list) {
    bool first = in_list; // the dash stands where its first key does
    for (const auto& entry_of : table) {
      const auto& [key, value, origin] = entry_of;
      if (!key.empty() && key.front() == kComment) {
        if (&entry_of == table.begin()) {
          end_line();
        }
        comment(value.as_string(), indent);
        continue;
      }
      begin(indent, first);
      first = false;
      text_ += (is_plain(key) ? key : string_text(key)) + ":";
      entry(value, indent);
    }
  }

  std::string take() {
    end_line();
    return std::move(text_);
  }

private:
  void comment(const std::string& words, size_t indent) {
    if (open_) {
      text_ += "  # " + words;
    } else {
      begin(indent, /*item=*/false);
      text_ += "# " + words;
    }
    end_line();
  }

  void end_line() {
    text_ += open_ ? "\n" : "";
    open_ = false;
  }

  /// A new line; an item of a list has its dash two columns to the left.
  void begin(size_t indent, bool item) {
    end_line();
    text_ += item ? std::string(indent - 2, ' ') + "- " : std::string(indent, ' ');
    open_ = true;
  }

  void entry(const Value& value, size_t indent) {
    if (value.is_table()) {
      if (value.as_table().empty()) {
        text_ += " {}";
      } else {
        table(value.as_table(), indent + 2, /*in_list=*/false);
      }
    } else if (value.is_array()) {
      list(value.as_array(), indent);
    } else if (value.is_string() && is_block(value.as_string())) {
      block(value.as_string(), indent + 2);
    } else {
      text_ += " " + scalar(value);
    }
  }

  void list(const Value::Array& items, size_t indent) {
    if (items.empty()) {
      text_ += " []";
    }
    for (const Value& item : items) {
      if (item.is_table()) {
        table(item.as_table(), indent + 4, /*in_list=*/true);
      } else if (item.is_string() && is_block(item.as_string())) {
        begin(indent + 4, /*item=*/true);
        block(item.as_string(), indent + 4);
      } else {
        begin(indent + 4, /*item=*/true);
        text_ += scalar(item);
      }
    }
  }

  /// Whole lines of printable characters, the last one ended too, and the first not indented.
  static bool is_block(const std::string& text) {
    return text.size() > 1 && text.back() == '\n' && text.front() != ' ' && text.front() != '\n' &&
           text[text.size() - 2] != '\n' &&
           std::none_of(text.begin(), text.end(), [](unsigned char c) {
             return (c < ' ' && c != '\n') || c == 0x7f;
           });
  }

  void block(const std::string& text, size_t indent) {
    text_ += open_ && text_.back() == ':' ? " |" : "|";
    for (size_t at = 0; at < text.size();) {
      const size_t end = text.find('\n', at);
      end_line();
      text_ += end > at ? std::string(indent, ' ') + text.substr(at, end - at) : "";
      open_ = true;
      at = end + 1;
    }
  }

  std::string text_;
  bool open_ = false; // a line has begun
};

} // namespace

void add_comment(Table& ret_table, const std::string& words) {
  ret_table.set(kComment + std::to_string(ret_table.size()), words);
}

std::string yaml_text(const Table& document) {
  YamlWriter writer;
  writer.table(document, 0, /*in_list=*/false);
  return writer.take();
}

} // namespace mh
