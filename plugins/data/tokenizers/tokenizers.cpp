#include "tokenizers.hpp"

#include <megahost/error.hpp>

#include <algorithm>
#include <charconv>
#include <limits>
#include <utility>

namespace mh {

namespace {

constexpr int32_t kBytes = 256;

} // namespace

void ByteTokenizer::fields(Fields<Config>& fields) {
  fields.add(
      "special",
      &Config::special,
      "has the special tokens [PAD], [EOS], [CLS], [SEP] and [MASK], ids 256 to 260; a text with "
      "their names has them"
  );
  fields
      .add(
          "extra_ids",
          &Config::extra_ids,
          "sentinels <extra_id_0>, <extra_id_1>, ... for T5, the last ids"
      )
      .range(0, 100000);
}

ByteTokenizer::ByteTokenizer(const Config& config, const Args&) {
  if (config.special) {
    special_.pad = add("[PAD]");
    special_.eos = add("[EOS]");
    special_.cls = add("[CLS]");
    special_.sep = add("[SEP]");
    special_.mask = add("[MASK]");
  }
  for (int64_t i = 0; i < config.extra_ids; ++i) {
    special_.extra.push_back(add("<extra_id_" + std::to_string(i) + ">"));
  }
}

int32_t ByteTokenizer::add(std::string name) {
  names_.push_back(std::move(name));
  return static_cast<int32_t>(vocab()) - 1;
}

std::vector<int32_t> ByteTokenizer::encode(std::string_view text) const {
  std::vector<int32_t> ids;
  ids.reserve(text.size());
  for (size_t at = 0; at < text.size();) {
    const auto name =
        text[at] == '[' || text[at] == '<'
            ? std::ranges::find_if(
                  names_, [&](const std::string& one) { return text.substr(at).starts_with(one); }
              )
            : names_.end();
    if (name != names_.end()) {
      ids.push_back(kBytes + static_cast<int32_t>(name - names_.begin()));
      at += name->size();
    } else {
      ids.push_back(static_cast<unsigned char>(text[at++]));
    }
  }
  return ids;
}

std::string ByteTokenizer::decode(std::span<const int32_t> ids) const {
  std::string text;
  text.reserve(ids.size());
  for (int32_t id : ids) {
    if (id < 0 || id >= vocab()) {
      throw Error(
          "id " + std::to_string(id) + " is no byte: the byte tokenizer has ids 0 to " +
              std::to_string(vocab() - 1),
          "use the tokenizer that the ids were made with",
          exit_code::data
      );
    }
    if (id < kBytes) {
      text += static_cast<char>(id);
    } else {
      text += names_[static_cast<size_t>(id - kBytes)];
    }
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
