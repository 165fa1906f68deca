#include "core/text/word_pieces.hpp"

#include "core/text/normal_form.hpp"
#include "core/text/unicode.hpp"
#include "core/text/utf8.hpp"
#include "core/text/vocabulary_file.hpp"

#include <algorithm>
#include <array>

namespace mh::text {

void WordPieceModel::encode(std::string_view word, std::vector<int32_t>& ret_ids) const {
  const auto characters =
      static_cast<size_t>(std::ranges::count_if(word, [](char c) { return (c & 0xC0) != 0x80; }));
  const size_t before = ret_ids.size();
  bool known = characters <= longest_word;
  std::string candidate;
  for (size_t at = 0; known && at < word.size();) {
    size_t end = std::min(word.size(), at + pieces.longest());
    int32_t id = kNoId;
    for (; end > at && id == kNoId; end -= id == kNoId ? 1 : 0) {
      candidate = at == 0 ? "" : prefix;
      candidate += word.substr(at, end - at);
      id = pieces.find(candidate);
    }
    known = id != kNoId;
    ret_ids.push_back(id);
    at = end;
  }
  if (!known) {
    ret_ids.resize(before);
    if (unknown == kNoId) {
      refuse_word(word, unknown_token);
    }
    ret_ids.push_back(unknown);
  }
}

namespace {

bool is_chinese(char32_t code) {
  struct Range {
    char32_t first, last;
  };

  constexpr std::array<Range, 8> kRanges{{
      {0x4E00, 0x9FFF},
      {0x3400, 0x4DBF},
      {0x20000, 0x2A6DF},
      {0x2A700, 0x2B73F},
      {0x2B740, 0x2B81F},
      {0x2B920, 0x2CEAF},
      {0xF900, 0xFAFF},
      {0x2F800, 0x2FA1F},
  }};
  return std::ranges::any_of(kRanges, [&](const Range& range) {
    return code >= range.first && code <= range.last;
  });
}

/// Control, format and private characters.
constexpr Categories kUnclean =
    set_of(Category::Cc, Category::Co) | set_of(Category::control_space);

} // namespace

std::string without(Categories categories, std::string_view text) {
  std::string result;
  for_each_character(text, [&](char32_t code, std::string_view character) {
    if (!text::categories().in(code, categories)) {
      result += character;
    }
  });
  return result;
}

std::string lower(std::string_view text) {
  std::string result;
  for_each_character(text, [&](char32_t code, std::string_view) { append_lower(code, result); });
  return result;
}

std::string bert_normalized(std::string_view text, const BertRules& rules) {
  std::string result;
  result.reserve(text.size());
  for_each_character(text, [&](char32_t code, std::string_view character) {
    if (rules.clean) {
      if (code == '\t' || code == '\n' || code == '\r') {
        result += ' ';
        return;
      }
      if (code == 0 || code == 0xFFFD || categories().in(code, kUnclean)) {
        return;
      }
      if (categories().in(code, kSpaces)) {
        result += ' ';
        return;
      }
    }
    const bool apart = rules.chinese && is_chinese(code);
    result += apart ? " " : "";
    result += character;
    result += apart ? " " : "";
  });
  if (rules.strip_accents) {
    result = without(set_of(Category::Mn), normalized(result, NormalForm::nfd));
  }
  return rules.lower_case ? lower(result) : result;
}

std::string decoded_piece(std::string piece, size_t index, std::string_view prefix, bool clean) {
  if (index > 0) {
    if (piece.starts_with(prefix)) {
      piece.erase(0, prefix.size());
    } else {
      piece.insert(0, " ");
    }
  }
  constexpr std::array<std::pair<std::string_view, std::string_view>, 11> kJoined{{
      {" .", "."},
      {" ?", "?"},
      {" !", "!"},
      {" ,", ","},
      {" ' ", "'"},
      {" n't", "n't"},
      {" 'm", "'m"},
      {" do not", " don't"},
      {" 's", "'s"},
      {" 've", "'ve"},
      {" 're", "'re"},
  }};
  for (const auto& [apart, joined] : kJoined) {
    for (size_t at = 0; clean && (at = piece.find(apart, at)) != std::string::npos;) {
      piece.replace(at, apart.size(), joined);
      at += joined.size();
    }
  }
  return piece;
}

} // namespace mh::text
