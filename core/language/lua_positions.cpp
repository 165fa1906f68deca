#include "core/language/lua_positions.hpp"

#include "core/language/read.hpp"

#include <algorithm>
#include <array>
#include <cctype>
#include <optional>
#include <string_view>
#include <vector>

namespace mh {

namespace {

struct Token {
  enum class Kind { name, text, number, symbol, end };
  Kind kind = Kind::end;
  std::string_view text; ///< a string's contents without quotes
  size_t begin = 0;
  size_t end = 0;
};

class Lexer {
public:
  explicit Lexer(std::string_view text)
      : text_(text) {}

  Token next() {
    skip_blank();
    const size_t begin = at_;
    if (at_ >= text_.size()) {
      return {Token::Kind::end, "", begin, begin};
    }
    const char c = text_[at_];
    if (std::isalpha(static_cast<unsigned char>(c)) || c == '_') {
      take_word("_");
      return {Token::Kind::name, text_.substr(begin, at_ - begin), begin, at_};
    }
    if (std::isdigit(static_cast<unsigned char>(c))) {
      take_word("._");
      return {Token::Kind::number, text_.substr(begin, at_ - begin), begin, at_};
    }
    if (c == '"' || c == '\'') {
      return quoted_string(c);
    }
    if (const auto body = long_bracket()) {
      return {Token::Kind::text, *body, begin, at_};
    }
    ++at_;
    return {Token::Kind::symbol, text_.substr(begin, 1), begin, at_};
  }

private:
  void take_word(std::string_view also) {
    while (at_ < text_.size() && (std::isalnum(static_cast<unsigned char>(text_[at_])) ||
                                  also.find(text_[at_]) != std::string_view::npos)) {
      ++at_;
    }
  }

  void skip_blank() {
    while (at_ < text_.size()) {
      if (std::isspace(static_cast<unsigned char>(text_[at_]))) {
        ++at_;
      } else if (text_.substr(at_, 2) == "--") {
        at_ += 2;
        if (!long_bracket()) {
          at_ = std::min(text_.find('\n', at_), text_.size());
        }
      } else {
        return;
      }
    }
  }

  /// Takes [[...]] or [=[...]=] and returns what is between.
  std::optional<std::string_view> long_bracket() {
    size_t open = at_;
    if (open >= text_.size() || text_[open] != '[') {
      return std::nullopt;
    }
    const size_t level = std::min(text_.find_first_not_of('=', open + 1), text_.size()) - open - 1;
    open += level + 1;
    if (open >= text_.size() || text_[open] != '[') {
      return std::nullopt;
    }
    const std::string close = "]" + std::string(level, '=') + "]";
    const size_t end = std::min(text_.find(close, open), text_.size());
    at_ = std::min(end + close.size(), text_.size());
    return text_.substr(open + 1, std::max(end, open + 1) - open - 1);
  }

  Token quoted_string(char quote) {
    const size_t begin = at_++;
    while (at_ < text_.size() && text_[at_] != quote && text_[at_] != '\n') {
      at_ += text_[at_] == '\\' ? 2 : 1;
    }
    at_ = std::min(at_, text_.size());
    const std::string_view body = text_.substr(begin + 1, at_ - begin - 1);
    at_ = std::min(at_ + 1, text_.size());
    return {Token::Kind::text, body, begin, at_};
  }

  std::string_view text_;
  size_t at_ = 0;
};

class Positions {
public:
  Positions(const SourcePtr& source, const std::function<Spot(const std::string&)>& module)
      : index_(source)
      , module_(module) {
    Lexer lexer(source->text);
    do {
      tokens_.push_back(lexer.next());
    } while (tokens_.back().kind != Token::Kind::end);
  }

  Spot find() {
    int blocks = 0;
    while (!at_end()) {
      const Token& token = tokens_[at_];
      if (token.kind != Token::Kind::name) {
        ++at_;
      } else if (is_one_of(token.text, {"function", "if", "do", "repeat"})) {
        ++blocks;
        ++at_;
      } else if (is_one_of(token.text, {"end", "until"})) {
        --blocks;
        ++at_;
      } else if (token.text == "return" && blocks == 0) {
        ++at_;
        returned_ = expression(0);
        returned_.key = returned_.value;
      } else {
        assignment();
      }
    }
    return std::move(returned_);
  }

private:
  static bool is_one_of(std::string_view text, std::initializer_list<std::string_view> words) {
    return std::find(words.begin(), words.end(), text) != words.end();
  }

  bool at_end() const { return tokens_[at_].kind == Token::Kind::end; }

  const Token& ahead(size_t distance) const {
    return tokens_[std::min(at_ + distance, tokens_.size() - 1)];
  }

  bool symbol(size_t distance, char c) const {
    const Token& token = ahead(distance);
    return token.kind == Token::Kind::symbol && token.text[0] == c;
  }

  /// `name = value`, `name.key["key"] = value`; any other name is stepped over.
  void assignment() {
    const Origin first = index_.at(ahead(0).begin, ahead(0).end);
    std::vector<std::string> path{std::string(ahead(0).text)};
    Origin key = first;
    ++at_;
    while (true) {
      if (symbol(0, '.') && ahead(1).kind == Token::Kind::name) {
        path.emplace_back(ahead(1).text);
        key = index_.at(ahead(1).begin, ahead(1).end);
        at_ += 2;
      } else if (symbol(0, '[') && ahead(1).kind == Token::Kind::text && symbol(2, ']')) {
        path.emplace_back(ahead(1).text);
        key = index_.at(ahead(1).begin, ahead(1).end);
        at_ += 3;
      } else {
        break;
      }
    }
    if (!symbol(0, '=') || symbol(1, '=')) {
      return;
    }
    ++at_;
    Spot spot = expression(0);
    spot.key = key;
    Spot* target = &names_[path[0]];
    for (size_t i = 1; i < path.size(); ++i) {
      target = &target->members[path[i]];
    }
    *target = std::move(spot);
  }

  /// Reads one expression up to a `,`, `;` or closing bracket, or as far as its first term goes.
  Spot expression(int depth) {
    const size_t begin = ahead(0).begin;
    Spot spot = depth > kDeepest ? Spot{} : term(depth);
    size_t end = at_ == 0 ? begin : std::max(begin, tokens_[at_ - 1].end);
    if (depth > 0) {
      const bool whole = ends_expression();
      int open = 0;
      while (!at_end() && (open > 0 || !ends_expression())) {
        open += symbol(0, '(') || symbol(0, '{') || symbol(0, '[');
        open -= symbol(0, ')') || symbol(0, '}') || symbol(0, ']');
        end = ahead(0).end;
        ++at_;
      }
      if (!whole) {
        spot.members.clear();
      }
    } else if (!symbol(0, ',') && spot.members.empty()) {
      end = std::max(end, statement_end(begin));
    }
    spot.value = index_.at(begin, end);
    return spot;
  }

  bool ends_expression() const {
    return symbol(0, ',') || symbol(0, ';') || symbol(0, '}') || symbol(0, ')') || symbol(0, ']');
  }

  /// End of the last token on the line of `begin`.
  size_t statement_end(size_t begin) const {
    const size_t line_end = index_.source()->text.find('\n', begin);
    size_t end = begin;
    for (size_t i = at_ == 0 ? 0 : at_ - 1; i < tokens_.size() && tokens_[i].begin < line_end;
         ++i) {
      end = std::max(end, tokens_[i].end);
    }
    return end;
  }

  Spot term(int depth) {
    if (symbol(0, '{')) {
      return constructor(depth);
    }
    if (ahead(0).kind != Token::Kind::name) {
      at_ += at_end() || ends_expression() ? 0 : 1;
      return {};
    }
    if (ahead(0).text == "require") {
      const size_t name = symbol(1, '(') ? 2 : 1;
      if (ahead(name).kind == Token::Kind::text) {
        const std::string module(ahead(name).text);
        at_ += name == 2 ? 4 : 2;
        return module_(module);
      }
    }
    if (ahead(0).text == "merge" && symbol(1, '(')) {
      return merged(depth);
    }
    return known_name();
  }

  /// `base`, `base.model`: what was assigned to it before.
  Spot known_name() {
    const auto found = names_.find(std::string(ahead(0).text));
    const Spot* spot = found == names_.end() ? nullptr : &found->second;
    ++at_;
    while (symbol(0, '.') && ahead(1).kind == Token::Kind::name) {
      if (spot) {
        const auto member = spot->members.find(std::string(ahead(1).text));
        spot = member == spot->members.end() ? nullptr : &member->second;
      }
      at_ += 2;
    }
    return spot && !symbol(0, '(') ? *spot : Spot{};
  }

  static void merge_into(Spot& base, Spot over) {
    for (auto& [key, member] : over.members) {
      const auto found = base.members.find(key);
      if (found == base.members.end() || found->second.members.empty() || member.members.empty()) {
        base.members[key] = std::move(member);
      } else {
        merge_into(found->second, std::move(member));
      }
    }
    base.key = over.key;
    base.value = over.value;
  }

  Spot merged(int depth) {
    at_ += 2;
    Spot result;
    while (!at_end() && !symbol(0, ')')) {
      merge_into(result, expression(depth + 1));
      at_ += symbol(0, ',') ? 1 : 0;
      if (symbol(0, '}') || symbol(0, ']') || symbol(0, ';')) {
        break;
      }
    }
    at_ += symbol(0, ')') ? 1 : 0;
    return result;
  }

  Spot constructor(int depth) {
    Spot table;
    int position = 0;
    ++at_;
    while (!at_end() && !symbol(0, '}')) {
      if (symbol(0, ',') || symbol(0, ';')) {
        ++at_;
        continue;
      }
      const size_t before = at_;
      std::string name;
      Origin key;
      if (ahead(0).kind == Token::Kind::name && symbol(1, '=') && !symbol(2, '=')) {
        name = ahead(0).text;
        key = index_.at(ahead(0).begin, ahead(0).end);
        at_ += 2;
      } else if (symbol(0, '[') && symbol(2, ']') && symbol(3, '=')) {
        name = ahead(1).text;
        key = index_.at(ahead(1).begin, ahead(1).end);
        at_ += 4;
      } else {
        name = std::to_string(++position);
      }
      Spot member = expression(depth + 1);
      member.key = key.source ? key : member.value;
      table.members[name] = std::move(member);
      at_ += at_ == before ? 1 : 0;
    }
    at_ += at_end() ? 0 : 1;
    return table;
  }

  LineIndex index_;
  const std::function<Spot(const std::string&)>& module_;
  std::vector<Token> tokens_;
  size_t at_ = 0;
  std::map<std::string, Spot> names_;
  Spot returned_;
};

} // namespace

Spot lua_positions(
    const SourcePtr& source, const std::function<Spot(const std::string& name)>& module
) {
  return Positions(source, module).find();
}

} // namespace mh
