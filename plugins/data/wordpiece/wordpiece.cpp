#include "wordpiece.hpp"

#include "core/base/text.hpp"
#include "core/text/unicode.hpp"
#include "core/text/utf8.hpp"
#include "core/text/vocabulary_file.hpp"

#include <megahost/error.hpp>

namespace mh::wordpiece {
namespace {

constexpr size_t kMostTokens = 1 << 24;

[[noreturn]] void refuse(const std::string& where, const std::string& why) {
  throw Error(
      where + ": " + why,
      "give the vocab.txt of a BERT model: a token in each line, its id the line's number less 1",
      exit_code::data
  );
}

} // namespace

void WordPieceTokenizer::fields(Fields<Config>& fields) {
  fields.add("path", &Config::path, "vocab.txt: a token in each line").path().required();
  fields.add(
      "lower_case",
      &Config::lower_case,
      "texts are lower-cased and lose their accents; false for cased models"
  );
  fields.add("chinese", &Config::chinese, "each Chinese character is a word");
  fields.add(
      "add_special_tokens",
      &Config::add_special_tokens,
      "begins texts with [CLS], ends them with [SEP]"
  );
  fields.add(
      "bos_eos",
      &Config::bos_eos,
      "[BOS] and [EOS] have the ids behind the file's tokens, as in Megatron-LM's own tokenizer"
  );
  fields
      .add(
          "extra_ids",
          &Config::extra_ids,
          "sentinels <extra_id_0>, <extra_id_1>, ... for T5, with the ids behind the file's tokens"
      )
      .range(0, 65536);
}

WordPieceTokenizer::WordPieceTokenizer(const Config& config, const Args&)
    : add_special_tokens_(config.add_special_tokens) {
  rules_.lower_case = rules_.strip_accents = config.lower_case;
  rules_.chinese = config.chinese;
  read_tokens(config.path);
  if (config.bos_eos) {
    special_.bos = find_or_add("[BOS]");
    special_.eos = find_or_add("[EOS]");
  }
  add_extra_ids(config.extra_ids, config.path);
  const auto special = [&](const char* name) -> std::optional<int32_t> {
    const int32_t id = model_.pieces.find(name);
    if (id == text::kNoId) {
      return std::nullopt;
    }
    added_.add({.content = name, .id = id});
    return id;
  };
  special_.unk = special("[UNK]");
  special_.cls = special("[CLS]");
  special_.sep = special("[SEP]");
  special_.pad = special("[PAD]");
  special_.mask = special("[MASK]");
  if (!special_.unk) {
    refuse(config.path, "there is no token [UNK]");
  }
  if (add_special_tokens_ && (!special_.cls || !special_.sep)) {
    refuse(config.path, "tokenizer.add_special_tokens needs the tokens [CLS] and [SEP]");
  }
  model_.unknown = *special_.unk;
}

void WordPieceTokenizer::read_tokens(const std::string& path) {
  const std::string text = text::read_vocabulary_file("tokenizer.path", path);
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    std::string_view line = std::string_view(text).substr(begin, end - begin);
    begin = end + 1;
    if (line.ends_with('\r')) {
      line.remove_suffix(1);
    }
    const std::string where = path + ": line " + std::to_string(tokens_.size() + 1);
    if (tokens_.size() == kMostTokens) {
      refuse(where, "more than " + std::to_string(kMostTokens) + " tokens");
    }
    if (line.empty() || text::valid_prefix(line) != line.size()) {
      refuse(where, "a token that is empty or no UTF-8");
    }
    if (!model_.pieces.add(line, static_cast<int32_t>(tokens_.size()))) {
      refuse(where, "the token " + string_text(line) + " is given twice");
    }
    tokens_.emplace_back(line);
  }
}

int32_t WordPieceTokenizer::find_or_add(const std::string& token) {
  const auto next = static_cast<int32_t>(tokens_.size());
  const bool added = model_.pieces.add(token, next);
  const int32_t id = added ? next : model_.pieces.find(token);
  if (added) {
    tokens_.push_back(token);
  }
  added_.add({.content = token, .id = id});
  return id;
}

void WordPieceTokenizer::add_extra_ids(int64_t count, const std::string& path) {
  for (int64_t i = 0; i < count; ++i) {
    const std::string name = "<extra_id_" + std::to_string(i) + ">";
    const auto id = static_cast<int32_t>(tokens_.size());
    if (!model_.pieces.add(name, id)) {
      refuse(path, "the token " + name + " is there, and tokenizer.extra_ids would add it");
    }
    tokens_.push_back(name);
    added_.add({.content = name, .id = id});
    special_.extra.push_back(id);
  }
}

void WordPieceTokenizer::encode_words(
    std::string_view text, text::WordEncoder& encoder, std::vector<int32_t>& ret_ids
) const {
  const std::string plain = text::bert_normalized(text, rules_);
  size_t begin = 0; // where the word begins
  const auto word_ends = [&](size_t end) {
    if (end > begin) {
      encoder.encode(std::string_view(plain).substr(begin, end - begin), ret_ids);
    }
  };
  for (size_t at = 0; at < plain.size();) {
    const text::Character c = text::decode_at(plain.data() + at);
    const bool space = text::categories().in(c.code, text::kSpaces);
    if (space || text::is_punctuation(c.code)) {
      word_ends(at);
      begin = at;
      if (!space) {
        word_ends(at + c.length);
      }
      begin = at + c.length;
    }
    at += c.length;
  }
  word_ends(plain.size());
}

std::vector<int32_t> WordPieceTokenizer::encode(std::string_view text) const {
  auto encoder = encoders_.take([&] { return std::make_unique<text::WordEncoder>(model_); });
  std::vector<int32_t> ids;
  if (add_special_tokens_) {
    ids.push_back(*special_.cls);
  }
  added_.split(text::replace_invalid(text), [&](std::string_view part, int32_t id) {
    if (id != text::kNoId) {
      ids.push_back(id);
    } else {
      encode_words(part, *encoder, ids);
    }
  });
  if (add_special_tokens_) {
    ids.push_back(*special_.sep);
  }
  encoders_.bring(std::move(encoder));
  return ids;
}

std::string WordPieceTokenizer::decode(std::span<const int32_t> ids) const {
  std::string text;
  for (size_t i = 0; i < ids.size(); ++i) {
    text += text::decoded_piece(token_at(ids[i]), i, model_.prefix, /*clean=*/true);
  }
  return text;
}

const std::string& WordPieceTokenizer::token_at(int32_t id) const {
  if (id < 0 || static_cast<size_t>(id) >= tokens_.size()) {
    text::refuse_id(id, tokens_.size());
  }
  return tokens_[static_cast<size_t>(id)];
}

} // namespace mh::wordpiece
