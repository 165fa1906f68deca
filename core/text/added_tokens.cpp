#include "core/text/added_tokens.hpp"

#include "core/text/unicode.hpp"
#include "core/text/utf8.hpp"

namespace mh::text {

namespace {

/// The character before `at`; empty at the beginning or if it is not valid.
std::string_view character_before(std::string_view text, size_t at) {
  size_t begin = at;
  while (begin > 0 && at - begin < 4) {
    --begin;
    if ((static_cast<unsigned char>(text[begin]) & 0xC0) != 0x80) {
      break;
    }
  }
  const std::string_view last = text.substr(begin, at - begin);
  return character_length(last) == last.size() ? last : std::string_view();
}

std::string_view character_at(std::string_view text, size_t at) {
  return text.substr(at, character_length(text.substr(at, 4)));
}

bool is_space(std::string_view character) {
  return !character.empty() && categories().in(decode_at(character.data()).code, kSpaces);
}

} // namespace

void AddedTokens::add(AddedToken token) {
  trie_.add(token.content, static_cast<int32_t>(tokens_.size()));
  tokens_.push_back(std::move(token));
}

bool AddedTokens::in_word(std::string_view text, size_t begin, size_t end) {
  const auto word = [](std::string_view character) {
    return !character.empty() && is_word_character(decode_at(character.data()).code);
  };
  return word(character_before(text, begin)) || word(character_at(text, end));
}

size_t AddedTokens::spaces_before(std::string_view text, size_t least, size_t end) {
  while (end > least && is_space(character_before(text, end))) {
    end -= character_before(text, end).size();
  }
  return end;
}

size_t AddedTokens::spaces_behind(std::string_view text, size_t begin) {
  while (is_space(character_at(text, begin))) {
    begin += character_at(text, begin).size();
  }
  return begin;
}

} // namespace mh::text
