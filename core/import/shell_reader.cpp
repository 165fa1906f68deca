#include "core/import/shell_reader.hpp"

#include "core/import/shell_text.hpp"
#include "megahost/error.hpp"

#include <cctype>
#include <utility>

namespace mh::shell {

namespace {

constexpr int kDeepest = 32;
constexpr size_t kLongest = 1 << 20; // bytes of a word, and words

bool ends_word(char c) {
  return is_blank(c) || c == '\n' || std::string_view(";&|<>()").find(c) != std::string_view::npos;
}

} // namespace

Word joined(const ShellWords& words) {
  Word result;
  for (const Word& word : words) {
    result.text += &word == &words.front() ? "" : " ";
    result.append(word);
  }
  return result;
}

void WordReader::Building::add(const Word& piece) {
  word.append(piece);
  started = true;
  if (word.text.size() > kLongest || done.size() > kLongest) {
    throw Error("the script makes a word of more than a million characters", "paste the command");
  }
}

void WordReader::Building::next() {
  if (started) {
    done.push_back(std::exchange(word, {}));
    started = false;
  }
}

ShellWords WordReader::Building::finish() {
  next();
  return std::move(done);
}

WordReader::WordReader(
    std::string_view text,
    std::string name,
    Variables& variables,
    const ShellEnvironment& environment,
    int depth
)
    : text_(text)
    , name_(std::move(name))
    , variables_(variables)
    , environment_(environment)
    , depth_(depth) {
  if (depth > kDeepest) {
    refuse("variables inside one another, more than 32 deep");
  }
}

std::string WordReader::where() const {
  return name_ + ":" + std::to_string(line_);
}

void WordReader::refuse(const std::string& what, const std::string& hint) const {
  throw Error(where() + ": " + what, hint);
}

char WordReader::peek(size_t ahead) const {
  return at_ + ahead < text_.size() ? text_[at_ + ahead] : '\0';
}

char WordReader::take() {
  const char c = text_[at_++];
  line_ += c == '\n' ? 1 : 0;
  return c;
}

void WordReader::skip_blanks() {
  while (!at_end()) {
    if (is_blank(peek())) {
      take();
    } else if (peek() == '\\' && (peek(1) == '\n' || (peek(1) == '\r' && peek(2) == '\n'))) {
      while (take() != '\n') {
      }
    } else if (peek() == '#') {
      while (!at_end() && peek() != '\n') {
        take();
      }
    } else {
      return;
    }
  }
}

std::string WordReader::take_operator() {
  if (at_end() || peek() == '\n') {
    if (!at_end()) {
      take();
      read_here_documents();
    }
    return "\n";
  }
  for (const char* sign : {";;", "&&", "||", "|&", "&>", "<<", ">>", ">&", "<&", ">|"}) {
    if (text_.substr(at_, 2) == sign) {
      at_ += 2;
      return sign;
    }
  }
  if (std::string_view(";&|()<>").find(peek()) != std::string_view::npos) {
    return std::string(1, take());
  }
  const bool numbered =
      std::isdigit(static_cast<unsigned char>(peek())) != 0 && (peek(1) == '>' || peek(1) == '<');
  if (numbered) { // 2>&1
    take();
    return take_operator();
  }
  return "";
}

void WordReader::drop_redirection(const std::string& sign) {
  if (peek() == '-') {
    take();
  }
  skip_blanks();
  bool plain = false;
  const ShellWords words = take_words(plain);
  if (sign == "<<") {
    here_ends_.push_back(joined(words).text);
  }
}

void WordReader::read_here_documents() {
  for (const std::string& end : std::exchange(here_ends_, {})) {
    std::string text;
    for (bool found = false; !found && !at_end();) {
      std::string line;
      while (!at_end() && peek() != '\n') {
        line += take();
      }
      if (!at_end()) {
        take();
      }
      found = line.substr(std::min(line.find_first_not_of('\t'), line.size())) == end;
      text += found ? "" : line + "\n";
    }
    for (size_t at = 0; (at = text.find('"', at)) != std::string::npos; at += 2) {
      text.insert(at, "\\"); // quotes are letters there
    }
    try {
      here_documents_.push_back(text_of("\"" + text + "\""));
    } catch (const Error& error) { // it may be no script at all
      here_documents_.push_back({"", error.what()});
    }
  }
}

ShellWords WordReader::take_here_documents() {
  return std::exchange(here_documents_, {});
}

std::string WordReader::take_assignment(bool& ret_adds) {
  const size_t length = name_length(text_.substr(at_));
  if (length == 0) {
    return "";
  }
  ret_adds = peek(length) == '+' && peek(length + 1) == '=';
  if (!ret_adds && peek(length) != '=') {
    return "";
  }
  std::string name(text_.substr(at_, length));
  at_ += length + (ret_adds ? 2 : 1);
  return name;
}

ShellWords WordReader::take_value() {
  bool plain = false;
  if (peek() != '(') {
    ShellWords words = ends_word(peek()) || at_end() ? ShellWords{} : take_words(plain);
    return {joined(words)};
  }
  take();
  ShellWords words;
  while (true) {
    skip_blanks();
    if (at_end()) {
      refuse("an array without its closing parenthesis");
    }
    if (peek() == '\n') {
      take();
    } else if (peek() == ')') {
      take();
      return words;
    } else if (ends_word(peek())) {
      refuse(std::string("`") + peek() + "` inside an array");
    } else {
      const ShellWords more = take_words(plain);
      words.insert(words.end(), more.begin(), more.end());
    }
  }
}

ShellWords WordReader::take_words(bool& ret_plain) {
  Building building;
  ret_plain = true;
  while (!at_end() && !ends_word(peek())) {
    switch (peek()) {
    case '\\':
      take();
      if (!at_end()) {
        const char c = take();
        if (c != '\n') {
          building.add({std::string(1, c)});
        }
      }
      continue;
    case '\'':
      ret_plain = false;
      single_quotes(building);
      continue;
    case '"':
      ret_plain = false;
      double_quotes(building);
      continue;
    case '`':
    case '$':
      ret_plain = false;
      expand(building, /*quoted=*/false);
      continue;
    default:
      building.add({home_or(take(), building.started)});
    }
  }
  return building.finish();
}

std::string WordReader::home_or(char c, bool inside) {
  const bool alone = c == '~' && !inside && (peek() == '/' || at_end() || ends_word(peek()));
  return alone ? environment_("HOME").value_or("~") : std::string(1, c);
}

void WordReader::single_quotes(Building& building) {
  const std::string start = where();
  take();
  std::string text;
  while (!at_end() && peek() != '\'') {
    text += take();
  }
  if (at_end()) {
    throw Error(start + ": a quote ' without its end");
  }
  take();
  building.add({text});
}

void WordReader::double_quotes(Building& building) {
  const std::string start = where();
  take();
  bool no_words = false; // "$@" and "${array[@]}" may be no word at all
  bool anything = false;
  while (!at_end() && peek() != '"') {
    if (peek() == '\\' && std::string_view("\"\\$`\n").find(peek(1)) != std::string_view::npos) {
      take();
      const char c = take();
      building.add({c == '\n' ? "" : std::string(1, c)});
    } else if (peek() == '$' || peek() == '`') {
      if (!expand(building, /*quoted=*/true)) {
        no_words = true;
        continue;
      }
    } else {
      building.add({std::string(1, take())});
    }
    anything = true;
  }
  if (at_end()) {
    throw Error(start + ": a quote \" without its end");
  }
  take();
  if (!anything && !no_words) {
    building.add({""});
  }
}

std::string WordReader::until_closing(char open, char close) {
  const std::string start = where();
  std::string inside;
  for (int nested = 0; !at_end(); inside += take()) {
    if (peek() == '\\' && peek(1) != '\0') {
      inside += take();
    } else if (peek() == close && nested-- == 0) {
      take();
      return inside;
    } else if (peek() == open && open != close) {
      ++nested;
    }
  }
  throw Error(start + ": `" + std::string(1, open) + "` without its closing `" + close + "`");
}

} // namespace mh::shell
