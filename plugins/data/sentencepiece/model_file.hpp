#pragma once
/// SentencePiece's .model file: a protobuf of pieces and of how texts are normalized.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace mh::sentencepiece {

enum class PieceType : uint8_t { normal = 1, unknown, control, user_defined, unused, byte };

struct ScoredPiece {
  std::string text;
  float score = 0;
  PieceType type = PieceType::normal;
};

enum class ModelType : uint8_t { unigram = 1, bpe };

struct ModelFile {
  std::vector<ScoredPiece> pieces; ///< by their ids
  ModelType type = ModelType::unigram;
  bool byte_fallback = false;
  bool space_as_suffix = false; ///< the blank of a word stands behind it
  std::string bos = "<s>", eos = "</s>", pad = "<pad>";
  std::string unknown_text = " \u2047 "; ///< text that the unknown piece is decoded to
  std::string charsmap;
  bool dummy_prefix = true;  ///< a blank before the text
  bool remove_spaces = true; ///< at both ends, and where there are several
  bool escape_spaces = true; ///< spaces become U+2581
};

/// Reads the bytes of a .model file.
///
/// Throws:  mh::Error (exit code 5) naming the file: no protobuf; a field of another type; no
///          pieces, or more than 2^24; a piece that is empty, no UTF-8 or given twice; not one
///          unknown piece; byte fallback without the 256 pieces <0x00> to <0xFF>; a piece
///          of the type byte with another text; models of words or characters, or
///          with a denormalizer, which are not read here
/// Source:  github.com/google/sentencepiece, src/sentencepiece_model.proto
[[nodiscard]] ModelFile read_model(std::string_view bytes, const std::string& file);

/// "<0x0A>" for 10.
[[nodiscard]] std::string byte_piece(int byte);

/// The byte of such a piece.
[[nodiscard]] std::optional<char> byte_of(std::string_view text);

} // namespace mh::sentencepiece
