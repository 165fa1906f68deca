#include "core/import/shell_reader.hpp"
#include "core/import/shell_text.hpp"

#include <cctype>
#include <utility>

namespace mh::shell {

namespace {

Word unknown(std::string why) {
  return {"", std::move(why)};
}

/// Bytes of the name of a variable, or of a word of the command line: "1", "@", "#".
size_t parameter_length(std::string_view text) {
  if (!text.empty() && std::string_view("@*#").find(text.front()) != std::string_view::npos) {
    return 1;
  }
  const size_t digits = std::min(text.find_first_not_of("0123456789"), text.size());
  return digits > 0 ? digits : name_length(text);
}

} // namespace

Word WordReader::text_of(const std::string& text) {
  const bool has_quotes = text.size() >= 2 && text.front() == '"' && text.back() == '"';
  const std::string quoted = has_quotes ? text : "\"" + text + "\"";
  WordReader inner(quoted, where(), variables_, environment_, depth_ + 1);
  Building building;
  inner.double_quotes(building);
  return joined(building.finish());
}

ShellWords WordReader::variable(const std::string& name) {
  if (const auto found = variables_.find(name); found != variables_.end()) {
    return found->second;
  }
  if (std::isdigit(static_cast<unsigned char>(name.front())) != 0) {
    return {
        {"",
         where() + ": $" + name +
             " is a word of the script's own command line: give it behind the script's name",
         /*unset=*/true}};
  }
  if (const auto value = environment_(name)) {
    return {{*value}};
  }
  return {
      {"",
       where() + ": the variable " + name + " is set nowhere; set it in the environment, as in " +
           name + "=... megahost recipe import-args",
       /*unset=*/true}};
}

ShellWords WordReader::parameter(const std::string& inside, bool& ret_several) {
  const size_t length = parameter_length(inside);
  const std::string name = inside.substr(0, length);
  std::string rest = inside.substr(length);
  ret_several = rest.starts_with("[@]") || rest.starts_with("[*]");
  if (ret_several) {
    rest.erase(0, 3);
  }
  ret_several = ret_several || name == "@" || name == "*";
  const bool known = variables_.contains(name) || environment_(name).has_value();
  if (name.empty() || (!rest.empty() && rest.front() != ':' && rest.front() != '-' &&
                       rest.front() != '=' && rest.front() != '+')) {
    ret_several = false;
    return {unknown(where() + ": ${" + inside + "} is not read: write the value in its place")};
  }
  if (rest.empty()) {
    return known || !ret_several ? variable(name) : ShellWords{};
  }
  const bool colon = rest.front() == ':';
  const char how = rest[colon ? 1 : 0];
  const bool empty = !known || (colon && joined(variable(name)).text.empty() &&
                                joined(variable(name)).unknown.empty());
  const std::string word = rest.substr(std::min<size_t>(colon ? 2 : 1, rest.size()));
  switch (how) {
  case '-':
    return empty ? ShellWords{text_of(word)} : variable(name);
  case '=':
    if (empty) {
      variables_[name] = {text_of(word)};
    }
    return variable(name);
  case '+':
    return empty ? ShellWords{{""}} : ShellWords{text_of(word)};
  case '?':
    return variable(name);
  default:
    return {unknown(where() + ": ${" + inside + "} is not read: write the value in its place")};
  }
}

bool WordReader::expand(Building& building, bool quoted) {
  ShellWords value;
  bool several = false;
  if (peek() == '`') {
    take();
    value = {unknown(where() + ": `" + until_closing('`', '`') + "` is not run")};
  } else if (text_.substr(at_, 3) == "$((") {
    at_ += 3;
    std::string inside = until_closing('(', ')');
    if (peek() == ')') {
      take();
    }
    std::string with_signs; // names may stand without their $
    for (size_t i = 0; i < inside.size();) {
      const size_t length = name_length(std::string_view(inside).substr(i));
      const bool bare = length > 0 && (i == 0 || (inside[i - 1] != '$' && inside[i - 1] != '{'));
      with_signs += (bare ? "$" : "") + inside.substr(i, std::max<size_t>(length, 1));
      i += std::max<size_t>(length, 1);
    }
    Word text = text_of(with_signs);
    const auto number = text.unknown.empty() ? arithmetic(text.text) : std::nullopt;
    if (number) {
      text.text = std::to_string(*number);
    } else if (text.unknown.empty()) {
      text = unknown(where() + ": $((" + inside + ")) is no sum that is read");
    }
    value = {text};
  } else if (text_.substr(at_, 2) == "$(") {
    at_ += 2;
    value = {unknown(where() + ": the output of $(" + until_closing('(', ')') + ") is not known")};
  } else if (text_.substr(at_, 2) == "${") {
    at_ += 2;
    value = parameter(until_closing('{', '}'), several);
  } else {
    take();
    const bool digit = std::isdigit(static_cast<unsigned char>(peek())) != 0;
    const size_t length = digit ? 1 : parameter_length(text_.substr(at_));
    if (length == 0) { // $?, or a dollar alone
      const bool special = peek() != '\0' && std::string_view("?!-").find(peek()) != text_.npos;
      value = {
          special ? unknown(where() + ": $" + std::string(1, take()) + " is not known")
                  : Word{"$"}};
    } else {
      const std::string name(text_.substr(at_, length));
      at_ += length;
      value = variable(name);
      several = name == "@" || name == "*";
      if (!several) {
        value.resize(std::min<size_t>(value.size(), 1)); // an array gives its first word
      }
    }
  }
  if (several && value.empty()) {
    return false;
  }
  if (!several) {
    value = {joined(value)};
  }
  for (const Word& word : value) {
    if (&word != &value.front()) {
      building.next();
    }
    if (quoted || !word.unknown.empty()) {
      building.add(word);
      continue;
    }
    for (const char c : word.text) {
      if (is_blank(c) || c == '\n') {
        building.next();
      } else {
        building.add({std::string(1, c)});
      }
    }
  }
  return true;
}

} // namespace mh::shell
