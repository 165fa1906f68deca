#include "hf.hpp"

#include "core/text/unicode.hpp"
#include "core/text/utf8.hpp"

#include <megahost/error.hpp>

namespace mh::hf {

void HfTokenizer::fields(Fields<Config>& fields) {
  fields.add("path", &Config::path, "tokenizer.json, or a Hugging Face folder that holds it")
      .path()
      .required();
  fields.add(
      "add_special_tokens",
      &Config::add_special_tokens,
      "begins and ends each text with the special tokens of the file's post-processor"
  );
  fields.add("eod", &Config::eod, "token that ends a document; the folder's eos_token if absent");
}

std::string HfTokenizer::changed(std::string_view text) const {
  std::string result(text);
  for (const Change change : normalizers_) {
    switch (change) {
    case Change::nfc:
      result = text::normalized(result, text::NormalForm::nfc);
      break;
    case Change::nfd:
      result = text::normalized(result, text::NormalForm::nfd);
      break;
    case Change::nfkc:
      result = text::normalized(result, text::NormalForm::nfkc);
      break;
    case Change::nfkd:
      result = text::normalized(result, text::NormalForm::nfkd);
      break;
    case Change::lower: {
      std::string lower;
      text::for_each_character(result, [&](char32_t code, std::string_view) {
        text::append_lower(code, lower);
      });
      result = std::move(lower);
    }
    }
  }
  return result;
}

void HfTokenizer::encode_part(
    std::string_view text, text::WordEncoder& encoder, std::vector<int32_t>& ret_ids
) const {
  normalized_added_.split(text, [&](std::string_view part, int32_t id) {
    if (id != text::kNoId) {
      ret_ids.push_back(id);
    } else if (prefix_space_ && part[0] != ' ') {
      encoder.encode(" " + std::string(part), *splitter_, ret_ids);
    } else {
      encoder.encode(part, *splitter_, ret_ids);
    }
  });
}

std::vector<int32_t> HfTokenizer::encode(std::string_view text) const {
  auto encoder = encoders_.take([&] { return std::make_unique<text::WordEncoder>(model_); });
  std::vector<int32_t> ids(before_);
  added_.split(text, [&](std::string_view part, int32_t id) {
    if (id != text::kNoId) {
      ids.push_back(id);
      return;
    }
    text::for_each_run(part, [&](std::string_view run, bool valid) {
      if (!valid) {
        encoder->encode(run, ids);
      } else if (normalizers_.empty()) {
        encode_part(run, *encoder, ids);
      } else {
        encode_part(changed(run), *encoder, ids);
      }
    });
  });
  ids.insert(ids.end(), behind_.begin(), behind_.end());
  encoders_.bring(std::move(encoder));
  return ids;
}

const HfTokenizer::Token& HfTokenizer::token_at(int32_t id) const {
  if (id < 0 || static_cast<size_t>(id) >= tokens_.size() ||
      !tokens_[static_cast<size_t>(id)].known) {
    throw Error(
        "the id " + std::to_string(id) + " has no token: the vocabulary has ids 0 to " +
            std::to_string(tokens_.size() - 1),
        "use the tokenizer that the ids were made with",
        exit_code::data
    );
  }
  return tokens_[static_cast<size_t>(id)];
}

std::string HfTokenizer::decode(std::span<const int32_t> ids) const {
  std::string text;
  for (const int32_t id : ids) {
    text += token_at(id).bytes;
  }
  return text;
}

} // namespace mh::hf
