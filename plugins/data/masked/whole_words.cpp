#include "whole_words.hpp"

#include <megahost/error.hpp>

#include <algorithm>
#include <array>
#include <string>
#include <string_view>

namespace mh::masked {
namespace {

constexpr std::string_view kGoesOn = "##";
constexpr std::array<std::string_view, 2> kBlanks{"\u2581", "\u0120"};

bool begins_with_blank(const std::string& token) {
  return std::ranges::any_of(kBlanks, [&](std::string_view blank) {
    return token.starts_with(blank);
  });
}

bool is_letter(const std::string& token) {
  const auto c = static_cast<unsigned char>(token.front());
  return token.size() == 1 && ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
                               (c >= '0' && c <= '9') || c == '_' || c >= 0x80);
}

} // namespace

WholeWords::WholeWords(const Tokenizer& tokenizer, int64_t vocab, bool each_token) {
  if (each_token) {
    return;
  }
  std::vector<std::string> tokens;
  for (int64_t id = 0; id < std::min(vocab, tokenizer.vocab()); ++id) {
    try {
      tokens.push_back(tokenizer.token(static_cast<int32_t>(id)));
    } catch (const Error&) { // an id without a token
      tokens.emplace_back();
    }
  }
  const bool pieces = std::ranges::any_of(tokens, [](const std::string& token) {
    return token.starts_with(kGoesOn) && token.size() > kGoesOn.size();
  });
  const bool blanks = !pieces && std::ranges::any_of(tokens, begins_with_blank);
  for (const std::string& token : tokens) {
    roles_.push_back(
        token.empty() ? Role::begins
        : pieces      ? (token.starts_with(kGoesOn) ? Role::continues : Role::begins)
        : blanks      ? (begins_with_blank(token) ? Role::begins : Role::continues)
                      : (is_letter(token) ? Role::letter : Role::begins)
    );
  }
  const SpecialIds special = tokenizer.special_ids();
  for (const auto& id :
       {special.bos,
        special.eos,
        special.pad,
        special.unk,
        special.mask,
        special.cls,
        special.sep}) {
    if (id && static_cast<size_t>(*id) < roles_.size()) {
      roles_[static_cast<size_t>(*id)] = Role::begins;
    }
  }
}

std::vector<size_t> WholeWords::begins(std::span<const int64_t> ids) const {
  std::vector<size_t> begins;
  for (size_t i = 0; i < ids.size(); ++i) {
    const Role own = role(ids[i]);
    const bool goes_on = i > 0 && (own == Role::continues ||
                                   (own == Role::letter && role(ids[i - 1]) == Role::letter));
    if (!goes_on) {
      begins.push_back(i);
    }
  }
  return begins;
}

} // namespace mh::masked
