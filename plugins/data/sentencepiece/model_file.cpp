#include "model_file.hpp"

#include "core/base/text.hpp"
#include "core/formats/protobuf.hpp"
#include "core/text/utf8.hpp"

#include <megahost/error.hpp>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <unordered_set>

namespace mh::sentencepiece {
namespace {

constexpr size_t kMostPieces = 1 << 24;

[[noreturn]] void refuse(const std::string& where, const std::string& why) {
  throw Error(
      where + ": " + why,
      "the file is damaged, cut short, or no SentencePiece model: get it anew",
      exit_code::data
  );
}

[[noreturn]] void unknown(const std::string& where, const std::string& what) {
  throw Error(
      where + ": " + what + " is not known here",
      "use the tokenizer's own program, and `tokenizer = { use = \"null\", vocab = N }`",
      exit_code::data
  );
}

ScoredPiece read_piece(std::string_view message, const std::string& where) {
  ProtobufReader reader(message, where);
  ScoredPiece piece;
  while (const auto field = reader.next()) {
    if (field->number == 1) {
      piece.text = reader.bytes(*field);
    } else if (field->number == 2) {
      piece.score = reader.real(*field);
    } else if (field->number == 3) {
      const uint64_t type = reader.integer(*field);
      if (type < 1 || type > 6) {
        refuse(where, "a piece has the type " + std::to_string(type));
      }
      piece.type = static_cast<PieceType>(type);
    }
  }
  if (piece.text.empty() || text::valid_prefix(piece.text) != piece.text.size()) {
    refuse(where, "a piece that is empty or no UTF-8");
  }
  if (!std::isfinite(piece.score)) {
    refuse(where, "the score of " + string_text(piece.text) + " is no finite number");
  }
  return piece;
}

void read_trainer(std::string_view message, const std::string& where, ModelFile& ret_model) {
  constexpr std::array kTypes{"", "unigram", "bpe", "word", "char"};
  ProtobufReader reader(message, where);
  while (const auto field = reader.next()) {
    switch (field->number) {
    case 3: {
      const uint64_t type = reader.integer(*field);
      if (type != 1 && type != 2) {
        unknown(
            where, std::string("the model type ") + (type < 5 ? kTypes[type] : std::to_string(type))
        );
      }
      ret_model.type = static_cast<ModelType>(type);
      break;
    }
    case 24:
      ret_model.space_as_suffix = reader.integer(*field) != 0;
      break;
    case 35:
      ret_model.byte_fallback = reader.integer(*field) != 0;
      break;
    case 44:
      ret_model.unknown_text = reader.bytes(*field);
      break;
    case 46:
      ret_model.bos = reader.bytes(*field);
      break;
    case 47:
      ret_model.eos = reader.bytes(*field);
      break;
    case 48:
      ret_model.pad = reader.bytes(*field);
      break;
    default:
      break; // how the model was trained
    }
  }
}

void read_normalizer(std::string_view message, const std::string& where, ModelFile& ret_model) {
  ProtobufReader reader(message, where);
  while (const auto field = reader.next()) {
    switch (field->number) {
    case 2:
      ret_model.charsmap = reader.bytes(*field);
      break;
    case 3:
      ret_model.dummy_prefix = reader.integer(*field) != 0;
      break;
    case 4:
      ret_model.remove_spaces = reader.integer(*field) != 0;
      break;
    case 5:
      ret_model.escape_spaces = reader.integer(*field) != 0;
      break;
    default:
      break; // names
    }
  }
}

void refuse_denormalizer(std::string_view message, const std::string& where) {
  ProtobufReader reader(message, where);
  while (const auto field = reader.next()) {
    if (field->number == 2 && !reader.bytes(*field).empty()) {
      unknown(where, "a denormalizer");
    }
  }
}

void check(const ModelFile& model, const std::string& file) {
  std::unordered_set<std::string_view> texts;
  int64_t unknowns = 0;
  for (const ScoredPiece& piece : model.pieces) {
    if (!texts.insert(piece.text).second) {
      refuse(file, "the piece " + string_text(piece.text) + " is given twice");
    }
    unknowns += piece.type == PieceType::unknown ? 1 : 0;
    if (piece.type == PieceType::byte && !byte_of(piece.text)) {
      refuse(file, "the piece " + string_text(piece.text) + " is of the type byte");
    }
  }
  if (unknowns != 1) {
    refuse(
        file,
        std::to_string(model.pieces.size()) + " pieces, of which " + std::to_string(unknowns) +
            " are of the type unknown, expected one"
    );
  }
  for (int byte = 0; model.byte_fallback && byte < 256; ++byte) {
    if (!texts.contains(byte_piece(byte))) {
      refuse(file, "it has byte fallback, but no piece " + byte_piece(byte));
    }
  }
}

} // namespace

std::string byte_piece(int byte) {
  std::array<char, 8> text{};
  (void)std::snprintf(text.data(), text.size(), "<0x%02X>", static_cast<unsigned>(byte) & 0xFF);
  return text.data();
}

std::optional<char> byte_of(std::string_view text) {
  unsigned byte = 0;
  if (text.size() != 6 || !text.starts_with("<0x") || text[5] != '>' ||
      std::from_chars(text.data() + 3, text.data() + 5, byte, 16).ptr != text.data() + 5) {
    return std::nullopt;
  }
  return static_cast<char>(byte);
}

ModelFile read_model(std::string_view bytes, const std::string& file) {
  ProtobufReader reader(bytes, file);
  ModelFile model;
  while (const auto field = reader.next()) {
    switch (field->number) {
    case 1:
      if (model.pieces.size() == kMostPieces) {
        refuse(file, "more than " + std::to_string(kMostPieces) + " pieces");
      }
      model.pieces.push_back(
          read_piece(reader.bytes(*field), file + ": piece " + std::to_string(model.pieces.size()))
      );
      break;
    case 2:
      read_trainer(reader.bytes(*field), file + ": trainer_spec", model);
      break;
    case 3:
      read_normalizer(reader.bytes(*field), file + ": normalizer_spec", model);
      break;
    case 5:
      refuse_denormalizer(reader.bytes(*field), file + ": denormalizer_spec");
      break;
    default:
      break; // texts for its own test
    }
  }
  check(model, file);
  return model;
}

} // namespace mh::sentencepiece
