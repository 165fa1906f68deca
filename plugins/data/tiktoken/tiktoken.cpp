#include "tiktoken.hpp"

#include "core/text/pattern.hpp"
#include "core/text/vocabulary_file.hpp"
#include "ranks.hpp"

#include <megahost/error.hpp>

#include <algorithm>
#include <cctype>

namespace mh::tiktoken {
namespace {

constexpr const char* kPatternHint = "give gpt2, cl100k, o200k (Llama 4, too), llama3, qwen2 or "
                                     "qwen3_5, or a regular expression";

std::string
pattern_of(const std::string& given, const std::string& in_file, const std::string& path) {
  if (const auto named = text::named_pattern(given); !named.empty()) {
    return std::string(named);
  }
  if (given.empty() && in_file.empty()) {
    throw Error(
        "tokenizer.pattern is missing: " + path + " does not say how texts are cut into words",
        kPatternHint,
        exit_code::data
    );
  }
  const auto in_name = [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '-' || c == '.';
  };
  if (!given.empty() && std::ranges::all_of(given, in_name)) { // it would match itself alone
    throw Error("tokenizer.pattern: no pattern is named " + given, kPatternHint, exit_code::data);
  }
  return given.empty() ? in_file : given;
}

} // namespace

void TiktokenTokenizer::fields(Fields<Config>& fields) {
  fields.add("path", &Config::path, "a file of ranks (tokenizer.model, *.tiktoken) or tekken.json")
      .path()
      .required();
  fields.add(
      "pattern",
      &Config::pattern,
      "how texts are cut into words: gpt2, cl100k, o200k, llama3, qwen2, qwen3_5 or a regular "
      "expression; tekken.json has its own"
  );
  fields.add(
      "special_tokens",
      &Config::special_tokens,
      "special tokens such as <|end_of_text|>, whose ids follow the ranks in this order"
  );
  fields.add("bos", &Config::bos, "special token that begins a document");
  fields.add("eos", &Config::eos, "special token that ends a document");
  fields.add("pad", &Config::pad, "special token that fills up");
}

TiktokenTokenizer::TiktokenTokenizer(const Config& config, const Args&) {
  const std::string file = text::read_vocabulary_file("tokenizer.path", config.path);
  TokenRanks ranks = read_ranks(file, config.path);
  const std::string pattern = pattern_of(config.pattern, ranks.pattern, config.path);
  text_.splitter = text::known_splitter(pattern);
  if (text_.splitter == nullptr) {
    text_.splitter = text::pattern_splitter(
        std::make_shared<text::Pattern>(pattern, text::Dialect::rust, "tokenizer.pattern")
    );
  }
  std::unordered_map<std::string, int32_t> special;
  const auto add_special = [&](const std::string& token) {
    const auto id = static_cast<int32_t>(tokens_.size());
    if (token.empty() || !special.emplace(token, id).second) {
      throw Error(
          "tokenizer.special_tokens: " +
              (token.empty() ? "an empty token" : token + " is given twice"),
          "leave it out",
          exit_code::data
      );
    }
    tokens_.push_back(token);
    return id;
  };
  for (const std::string& token : ranks.special) {
    add_special(token);
  }
  const auto first = static_cast<int32_t>(tokens_.size());
  text::BytePairModel& model = text_.model;
  model.whole_words = true;
  model.tokens.reserve(ranks.tokens.size());
  for (size_t rank = 0; rank < ranks.tokens.size(); ++rank) {
    const auto id = first + static_cast<int32_t>(rank);
    (void)model.tokens.add(ranks.tokens[rank], id);
    if (ranks.tokens[rank].size() == 1) {
      model.bytes[static_cast<unsigned char>(ranks.tokens[rank][0])] = id;
    }
    tokens_.push_back(std::move(ranks.tokens[rank]));
  }
  text::add_pairs_by_rank(tokens_, model.tokens, model.merges);
  for (const std::string& token : config.special_tokens) {
    text_.special.add({.content = token, .id = add_special(token)});
  }
  const auto id_of = [&](const char* key, const std::string& token) -> std::optional<int32_t> {
    if (token.empty()) {
      return std::nullopt;
    }
    const auto found = special.find(token);
    if (found == special.end()) {
      throw Error(
          std::string("tokenizer.") + key + ": there is no special token " + token,
          "name it in tokenizer.special_tokens, in the order of the ids",
          exit_code::data
      );
    }
    return found->second;
  };
  const bool tekken = !ranks.special.empty();
  special_.bos = id_of("bos", config.bos.empty() && tekken ? "<s>" : config.bos);
  special_.eos = id_of("eos", config.eos.empty() && tekken ? "</s>" : config.eos);
  special_.pad = id_of("pad", config.pad);
  special_.unk = id_of("special_tokens", tekken ? "<unk>" : "");
}

std::string TiktokenTokenizer::decode(std::span<const int32_t> ids) const {
  std::string text;
  for (const int32_t id : ids) {
    if (id < 0 || static_cast<size_t>(id) >= tokens_.size()) {
      text::refuse_id(id, tokens_.size());
    }
    text += tokens_[static_cast<size_t>(id)];
  }
  return text;
}

} // namespace mh::tiktoken
