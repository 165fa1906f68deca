#include "hf.hpp"

#include "core/base/text.hpp"
#include "core/text/utf8.hpp"
#include "core/text/vocabulary_file.hpp"

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

std::string HfTokenizer::changed(std::string_view text, bool& ret_begins) const {
  std::string result(text);
  for (const TextNormalizer& normalizer : normalizers_) {
    result = normalizer(result, ret_begins);
  }
  return result;
}

void HfTokenizer::encode_part(
    std::string_view text, bool first, text::WordEncoder& encoder, std::vector<int32_t>& ret_ids
) const {
  normalized_added_.split(text, [&](std::string_view part, int32_t id) {
    if (id != text::kNoId) {
      ret_ids.push_back(id);
      return;
    }
    if (bytes_.splitter == nullptr) {
      std::vector<TextPart> pieces{{std::string(part), first && part.data() == text.data()}};
      for (const PreTokenizer& pre_tokenizer : pre_tokenizers_) {
        pre_tokenizer(pieces);
      }
      for (const TextPart& piece : pieces) {
        encoder.encode(piece.text, ret_ids);
      }
    } else if (bytes_.prefix_space && part[0] != ' ') {
      encoder.encode(" " + std::string(part), *bytes_.splitter, ret_ids);
    } else {
      encoder.encode(part, *bytes_.splitter, ret_ids);
    }
  });
}

std::vector<int32_t> HfTokenizer::encode(std::string_view text) const {
  auto encoder = encoders_.take([&] { return std::make_unique<text::WordEncoder>(*model_); });
  std::vector<int32_t> ids(before_);
  const std::string valid = bytes_.splitter == nullptr ? text::replace_invalid(text) : "";
  const std::string_view whole = bytes_.splitter == nullptr ? std::string_view(valid) : text;
  added_.split(whole, [&](std::string_view part, int32_t id) {
    if (id != text::kNoId) {
      ids.push_back(id);
      return;
    }
    text::for_each_run(part, [&](std::string_view run, bool is_text) {
      bool first = run.data() == whole.data();
      if (!is_text) {
        encoder->encode(run, ids);
      } else if (normalizers_.empty()) {
        encode_part(run, first, *encoder, ids);
      } else {
        const std::string text = changed(run, first);
        encode_part(text, first, *encoder, ids);
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
    text::refuse_id(id, tokens_.size());
  }
  return tokens_[static_cast<size_t>(id)];
}

std::string HfTokenizer::decode(std::span<const int32_t> ids) const {
  std::vector<std::string> tokens;
  for (const int32_t id : ids) {
    tokens.push_back(token_at(id).changed);
  }
  for (const TokenDecoder& decoder : decoders_) {
    decoder(tokens);
  }
  return join(tokens, decoders_.empty() ? " " : "");
}

} // namespace mh::hf
