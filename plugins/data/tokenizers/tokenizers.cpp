#include "tokenizers.hpp"

#include <megahost/error.hpp>

#include <algorithm>
#include <charconv>
#include <limits>

namespace mh {

void ByteTokenizer::fields(Fields<Config>&) {}

ByteTokenizer::ByteTokenizer(const Config&, const Args&) {}

std::vector<int32_t> ByteTokenizer::encode(std::string_view text) const {
  std::vector<int32_t> ids(text.size());
  std::ranges::transform(text, ids.begin(), [](char c) { return static_cast<unsigned char>(c); });
  return ids;
}

std::string ByteTokenizer::decode(std::span<const int32_t> ids) const {
  std::string text;
  text.reserve(ids.size());
  for (int32_t id : ids) {
    if (id < 0 || id > 255) {
      throw Error(
          "id " + std::to_string(id) + " is no byte: the byte tokenizer has ids 0 to 255",
          "use the tokenizer that the ids were made with",
          exit_code::data
      );
    }
    text += static_cast<char>(id);
  }
  return text;
}

void NullTokenizer::fields(Fields<Config>& fields) {
  fields.add("vocab", &Config::vocab, "number of ids")
      .required()
      .at_least(1)
      .at_most(std::numeric_limits<int32_t>::max());
}

NullTokenizer::NullTokenizer(const Config& config, const Args&)
    : vocab_(config.vocab) {}

std::vector<int32_t> NullTokenizer::encode(std::string_view text) const {
  constexpr std::string_view kSpace = " \t\r\n\v\f";
  std::vector<int32_t> ids;
  size_t begin = text.find_first_not_of(kSpace);
  while (begin != std::string_view::npos) {
    const size_t end = std::min(text.find_first_of(kSpace, begin), text.size());
    const std::string_view word = text.substr(begin, end - begin);
    int32_t id = -1;
    const auto [stop, failure] = std::from_chars(word.data(), word.data() + word.size(), id);
    if (failure != std::errc() || stop != word.data() + word.size() || id < 0 || id >= vocab_) {
      throw Error(
          "`" + std::string(word.substr(0, 40)) + "` at byte " + std::to_string(begin) +
              " is no id: the null tokenizer reads whole numbers from 0 to " +
              std::to_string(vocab_ - 1),
          "give ids separated by white space, or raise tokenizer.vocab",
          exit_code::data
      );
    }
    ids.push_back(id);
    begin = text.find_first_not_of(kSpace, end);
  }
  return ids;
}

std::string NullTokenizer::decode(std::span<const int32_t> ids) const {
  std::string text;
  for (int32_t id : ids) {
    text += (text.empty() ? "" : " ") + std::to_string(id);
  }
  return text;
}

} // namespace mh
