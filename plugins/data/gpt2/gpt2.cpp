#include "gpt2.hpp"

#include "core/text/vocabulary_file.hpp"

#include <megahost/error.hpp>

#include <utility>

namespace mh::gpt2 {

void Gpt2Tokenizer::fields(Fields<Config>& fields) {
  fields.add("vocab", &Config::vocab, "vocab.json: tokens and their ids (encoder.json)")
      .path()
      .required();
  fields.add("merges", &Config::merges, "merges.txt: pairs of tokens, in order (vocab.bpe)")
      .path()
      .required();
  fields.add("eod", &Config::eod, "token that ends a document");
  fields.add(
      "special_tokens",
      &Config::special_tokens,
      "further tokens of the vocabulary that are not made by merges, such as <|pad|>"
  );
}

Gpt2Tokenizer::Gpt2Tokenizer(const Config& config, const Args&) {
  std::vector<std::string> special = config.special_tokens;
  special.push_back(config.eod);
  const std::string vocab = text::read_vocabulary_file("tokenizer.vocab", config.vocab);
  const std::string merges = text::read_vocabulary_file("tokenizer.merges", config.merges);
  vocabulary_ = read_vocabulary(vocab, config.vocab, merges, config.merges, special);
  for (const std::string& token : special) {
    const bool by_default = token == Config().eod;
    if (!vocabulary_.special.contains(token) && !by_default) {
      throw Error(
          config.vocab + " lacks the special token " + token,
          "leave it out of tokenizer.eod and tokenizer.special_tokens, or add it to the vocabulary",
          exit_code::data
      );
    }
  }
  for (const auto& [token, id] : vocabulary_.special) {
    text_.special.add({.content = token, .id = id});
  }
  text_.model.merges = std::move(vocabulary_.merges);
  text_.model.bytes = vocabulary_.bytes;
  text_.splitter = text::gpt2_splitter();
  if (const auto eod = vocabulary_.special.find(config.eod); eod != vocabulary_.special.end()) {
    eod_ = eod->second;
  }
}

std::string Gpt2Tokenizer::decode(std::span<const int32_t> ids) const {
  std::string text;
  for (const int32_t id : ids) {
    if (id < 0 || id >= vocabulary_.size || !vocabulary_.known[static_cast<size_t>(id)]) {
      text::refuse_id(id, static_cast<size_t>(vocabulary_.size));
    }
    text += vocabulary_.tokens[static_cast<size_t>(id)];
  }
  return text;
}

} // namespace mh::gpt2
