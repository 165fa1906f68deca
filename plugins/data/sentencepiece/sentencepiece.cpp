#include "sentencepiece.hpp"

#include "core/text/vocabulary_file.hpp"

#include <megahost/error.hpp>

#include <algorithm>
#include <limits>

namespace mh::sentencepiece {
namespace {

constexpr float kUnknownPenalty = 10;

/// Words begin at U+2581 behind another character: where no piece goes across such a place, words
/// are cut into pieces one by one.
class SpaceSplitter final : public text::Splitter {
public:
  /// The place of the first such beginning behind `from`.
  [[nodiscard]] static size_t next(std::string_view text, size_t from) {
    while (text.substr(from).starts_with(kSpace)) {
      from += kSpace.size();
    }
    return std::min(text.find(kSpace, from), text.size());
  }

  [[nodiscard]] size_t
  ends(std::string_view text, size_t begin, std::span<size_t> ret_ends) const override {
    size_t count = 0;
    while (begin < text.size() && count < ret_ends.size()) {
      begin = next(text, begin);
      ret_ends[count++] = begin;
    }
    return count;
  }
};

/// Whether texts are made of the piece, byte pieces apart.
bool is_ordinary(const ScoredPiece& piece) {
  return piece.type == PieceType::normal || piece.type == PieceType::user_defined ||
         piece.type == PieceType::unused;
}

text::ByteTokens byte_ids(const text::TokenMap& ids) {
  text::ByteTokens bytes{};
  for (int byte = 0; byte < 256; ++byte) {
    bytes[static_cast<size_t>(byte)] = ids.find(byte_piece(byte));
  }
  return bytes;
}

} // namespace

void SentencePieceTokenizer::fields(Fields<Config>& fields) {
  fields.add("path", &Config::path, "SentencePiece's file: tokenizer.model, spiece.model")
      .path()
      .required();
  fields.add("add_bos", &Config::add_bos, "begins each text with the model's <s>");
  fields.add("add_eos", &Config::add_eos, "ends each text with the model's </s>");
  fields
      .add(
          "extra_ids",
          &Config::extra_ids,
          "sentinels <extra_id_0>, <extra_id_1>, ...: those that are no pieces get the ids behind "
          "them, in this order"
      )
      .at_least(0)
      .at_most(1 << 16);
}

SentencePieceTokenizer::SentencePieceTokenizer(const Config& config, const Args&)
    : add_bos_(config.add_bos)
    , add_eos_(config.add_eos) {
  model_ = read_model(text::read_vocabulary_file("tokenizer.path", config.path), config.path);
  normalizer_ = Normalizer(model_, config.path);
  ids_.reserve(model_.pieces.size());
  for (size_t id = 0; id < model_.pieces.size(); ++id) {
    (void)ids_.add(model_.pieces[id].text, static_cast<int32_t>(id));
    if (model_.pieces[id].type == PieceType::unknown) {
      special_.unk = static_cast<int32_t>(id);
    }
  }
  if (model_.type == ModelType::bpe) {
    make_pairs();
  } else {
    make_unigram();
  }
  const auto first_of = [&](std::initializer_list<std::string_view> names) {
    std::optional<int32_t> id;
    for (const std::string_view name : names) {
      id = id ? id : find(name);
    }
    return id;
  };
  special_.bos = first_of({model_.bos});
  special_.eos = first_of({model_.eos});
  special_.pad = first_of({model_.pad, "[PAD]"});
  special_.mask = first_of({"<mask>", "[MASK]"});
  special_.cls = first_of({"[CLS]", "<cls>"});
  special_.sep = first_of({"[SEP]", "<sep>"});
  add_extra_ids(config.extra_ids, config.path);
  for (const auto& [key, wanted, id] :
       {std::tuple("add_bos", add_bos_, special_.bos),
        std::tuple("add_eos", add_eos_, special_.eos)}) {
    if (wanted && !id) {
      throw Error(
          std::string("tokenizer.") + key + ": " + config.path + " has no such piece",
          "leave it out",
          exit_code::data
      );
    }
  }
}

void SentencePieceTokenizer::make_pairs() {
  auto pairs = std::make_unique<text::ScoredPairModel>();
  pairs->unknown = *special_.unk;
  bool cuts = model_.escape_spaces; // whether words can be looked at one by one
  for (size_t id = 0; id < model_.pieces.size(); ++id) {
    const ScoredPiece& piece = model_.pieces[id];
    pairs->scores.push_back(piece.score);
    pairs->unused.push_back(piece.type == PieceType::unused);
    if (is_ordinary(piece)) {
      (void)pairs->pieces.add(piece.text, static_cast<int32_t>(id));
      cuts &= piece.type != PieceType::unused &&
              SpaceSplitter::next(piece.text, 0) == piece.text.size();
    }
    if (piece.type == PieceType::user_defined) {
      pairs->whole.add(piece.text, static_cast<int32_t>(id));
    }
  }
  if (model_.byte_fallback) {
    pairs->byte_tokens = byte_ids(ids_);
  }
  if (cuts) {
    splitter_ = std::make_unique<SpaceSplitter>();
  }
  word_model_ = std::move(pairs);
}

/// Scores of whole texts are added up, so a text is one word.
void SentencePieceTokenizer::make_unigram() {
  auto unigram = std::make_unique<text::UnigramModel>();
  unigram->rule = text::UnigramRule::sentencepiece;
  unigram->unknown = *special_.unk;
  float least = std::numeric_limits<float>::max();
  for (const ScoredPiece& piece : model_.pieces) {
    if (piece.type == PieceType::normal) {
      least = std::min(least, piece.score);
    }
  }
  unigram->unknown_score = least - kUnknownPenalty;
  for (size_t id = 0; id < model_.pieces.size(); ++id) {
    const ScoredPiece& piece = model_.pieces[id];
    unigram->scores.push_back(piece.score);
    if (piece.type == PieceType::user_defined || piece.type == PieceType::normal) {
      unigram->pieces.add(piece.text, static_cast<int32_t>(id));
    }
  }
  if (model_.byte_fallback) {
    unigram->byte_tokens = byte_ids(ids_);
  }
  word_model_ = std::move(unigram);
}

void SentencePieceTokenizer::add_extra_ids(int64_t count, const std::string& file) {
  for (int64_t i = 0; i < count || find("<extra_id_" + std::to_string(i) + ">"); ++i) {
    const std::string name = "<extra_id_" + std::to_string(i) + ">";
    if (!find(name)) {
      if (ids_.find(name) != text::kNoId) {
        throw Error(
            file + ": " + name + " is an ordinary piece",
            "leave tokenizer.extra_ids out",
            exit_code::data
        );
      }
      (void)ids_.add(name, static_cast<int32_t>(model_.pieces.size()));
      model_.pieces.push_back({name, 0, PieceType::user_defined});
    }
    special_.extra.push_back(*find(name));
    extra_.add({.content = name, .id = special_.extra.back()});
  }
}

std::vector<int32_t> SentencePieceTokenizer::encode(std::string_view text) const {
  auto encoder = encoders_.take([&] { return std::make_unique<text::WordEncoder>(*word_model_); });
  std::vector<int32_t> ids;
  if (add_bos_) {
    ids.push_back(*special_.bos);
  }
  extra_.split(text, [&](std::string_view part, int32_t id) {
    if (id != text::kNoId) {
      ids.push_back(id);
      return;
    }
    const std::string normalized = normalizer_(part);
    if (normalized.empty()) {
      return;
    }
    if (splitter_ != nullptr) {
      encoder->encode(normalized, *splitter_, ids);
    } else {
      word_model_->encode(normalized, ids);
    }
  });
  if (add_eos_) {
    ids.push_back(*special_.eos);
  }
  encoders_.bring(std::move(encoder));
  return ids;
}

std::string SentencePieceTokenizer::decode(std::span<const int32_t> ids) const {
  std::string text;
  bool at_begin = true; // where a blank stands for nothing
  bool space_seen = false;
  for (const int32_t id : ids) {
    const ScoredPiece& piece = piece_at(id);
    if (piece.type == PieceType::byte) {
      text += *byte_of(piece.text);
      continue;
    }
    at_begin = at_begin && !space_seen && text.empty();
    space_seen = false;
    if (piece.type == PieceType::control) {
      continue;
    }
    if (piece.type == PieceType::unknown) {
      text += model_.unknown_text;
      continue;
    }
    std::string_view rest = piece.text;
    if (at_begin && (model_.dummy_prefix || model_.remove_spaces) && rest.starts_with(kSpace)) {
      rest.remove_prefix(kSpace.size());
      space_seen = !model_.remove_spaces;
    }
    for (size_t at = 0; at < rest.size();) {
      const bool space = rest.substr(at).starts_with(kSpace);
      text += space ? ' ' : rest[at];
      at += space ? kSpace.size() : 1;
    }
  }
  return text;
}

/// A piece that stands for no text.
std::optional<int32_t> SentencePieceTokenizer::find(std::string_view text) const {
  const int32_t id = ids_.find(text);
  if (id == text::kNoId) {
    return std::nullopt;
  }
  const PieceType type = model_.pieces[static_cast<size_t>(id)].type;
  return type == PieceType::control || type == PieceType::user_defined ? std::optional(id)
                                                                       : std::nullopt;
}

const ScoredPiece& SentencePieceTokenizer::piece_at(int32_t id) const {
  if (id < 0 || static_cast<size_t>(id) >= model_.pieces.size()) {
    throw Error(
        "the id " + std::to_string(id) + " has no piece: the model has ids 0 to " +
            std::to_string(model_.pieces.size() - 1),
        "use the tokenizer that the ids were made with",
        exit_code::data
    );
  }
  return model_.pieces[static_cast<size_t>(id)];
}

} // namespace mh::sentencepiece
