#include "normalizer.hpp"

#include "core/text/utf8.hpp"

namespace mh::sentencepiece {

Normalizer::Normalizer(const ModelFile& model, const std::string& file)
    : charsmap_(model.charsmap, file)
    , space_(model.escape_spaces ? kSpace : " ")
    , dummy_prefix_(model.dummy_prefix)
    , remove_spaces_(model.remove_spaces)
    , space_as_suffix_(model.space_as_suffix) {
  for (size_t id = 0; id < model.pieces.size(); ++id) {
    if (model.pieces[id].type == PieceType::user_defined) {
      kept_.add(model.pieces[id].text, static_cast<int32_t>(id));
    }
  }
}

Normalizer::Step Normalizer::step(std::string_view text) const {
  if (kept_.begins(text[0])) {
    if (const size_t length = kept_.longest_prefix(text).first; length > 0) {
      return {text.substr(0, length), length};
    }
  }
  if (const auto match = charsmap_.longest(text)) {
    return {match->becomes, match->length};
  }
  const size_t length = text::character_length(text.substr(0, 4));
  return length == 0 ? Step{"\uFFFD", 1} : Step{text.substr(0, length), length};
}

std::string Normalizer::operator()(std::string_view text) const {
  std::string result;
  result.reserve(text.size() + text.size() / 4 + kSpace.size());
  while (remove_spaces_ && !text.empty()) {
    const Step first = step(text);
    if (first.becomes != " ") {
      break;
    }
    text.remove_prefix(first.length);
  }
  if (text.empty()) {
    return result;
  }
  if (dummy_prefix_ && !space_as_suffix_) {
    result += space_;
  }
  bool after_space = remove_spaces_;
  while (!text.empty()) {
    Step next = step(text);
    text.remove_prefix(next.length);
    while (after_space && next.becomes.starts_with(' ')) {
      next.becomes.remove_prefix(1);
    }
    for (const char byte : next.becomes) {
      if (byte == ' ') {
        result += space_;
      } else {
        result += byte;
      }
    }
    if (!next.becomes.empty()) {
      after_space = remove_spaces_ && next.becomes.ends_with(' ');
    }
  }
  while (remove_spaces_ && result.ends_with(space_)) {
    result.resize(result.size() - space_.size());
  }
  if (dummy_prefix_ && space_as_suffix_) {
    result += space_;
  }
  return result;
}

} // namespace mh::sentencepiece
