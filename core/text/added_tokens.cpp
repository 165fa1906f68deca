#include "core/text/added_tokens.hpp"

#include "core/text/cursor.hpp"

namespace mh::text {

namespace {

/// What `\w` of regular expressions takes.
constexpr Categories kWordCharacters =
    kLetters | kMarks | set_of(Category::Nd, Category::Nl) | set_of(Category::Pc);

/// The category of the character before `at`; none at the beginning or if it is not valid.
Categories category_before(std::string_view text, size_t at) {
  size_t begin = at;
  while (begin > 0 && at - begin < 4) {
    --begin;
    if ((static_cast<unsigned char>(text[begin]) & 0xC0) != 0x80) {
      break;
    }
  }
  const std::string_view last = text.substr(begin, at - begin);
  return !last.empty() && character_length(last) == last.size()
             ? Cursor(last.data(), last.data() + last.size()).here()
             : 0;
}

Categories category_at(std::string_view text, size_t at) {
  const std::string_view rest = text.substr(at, 4);
  return character_length(rest) == 0 ? 0 : Cursor(rest.data(), rest.data() + rest.size()).here();
}

} // namespace

void AddedTokens::add(AddedToken token) {
  trie_.add(token.content, static_cast<int32_t>(tokens_.size()));
  tokens_.push_back(std::move(token));
}

bool AddedTokens::in_word(std::string_view text, size_t begin, size_t end) {
  return ((category_before(text, begin) | category_at(text, end)) & kWordCharacters) != 0;
}

size_t AddedTokens::spaces_before(std::string_view text, size_t least, size_t end) {
  while (end > least && (category_before(text, end) & kSpaces) != 0) {
    end = static_cast<size_t>(Cursor::before(text.data() + end) - text.data());
  }
  return end;
}

size_t AddedTokens::spaces_behind(std::string_view text, size_t begin) {
  while ((category_at(text, begin) & kSpaces) != 0) {
    begin += character_length(text.substr(begin, 4));
  }
  return begin;
}

} // namespace mh::text
