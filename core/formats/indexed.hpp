#pragma once
/// Megatron's tokenised corpora: PREFIX.bin holds the tokens, PREFIX.idx what they are. No
/// LibTorch.
///
/// All numbers are little endian. The .bin file is the tokens of all sequences, one after the
/// other. The .idx file: "MMIDIDX\0\0", u64 version 1, u8 code of the token type, u64 sequences S,
/// u64 entries D; then i32[S] lengths in tokens, i64[S] byte offsets into the .bin file, i64[D] the
/// first sequence of each document and, last, S. For language models a document is one sequence.
///
/// Source:  Megatron-LM, megatron/core/datasets/indexed_dataset.py

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace mh {

/// A type of tokens; floats have codes in the format and hold no tokens.
struct TokenType {
  uint8_t code = 0;
  std::string_view name;
  uint8_t bytes = 0;
  bool is_signed = false;
};

inline constexpr std::array<TokenType, 6> kTokenTypes{{
    {1, "uint8", 1, false},
    {2, "int8", 1, true},
    {3, "int16", 2, true},
    {4, "int32", 4, true},
    {5, "int64", 8, true},
    {8, "uint16", 2, false},
}};

/// The type that Megatron stores a vocabulary in: uint16 below 65,500 ids, int32 from there on.
[[nodiscard]] const TokenType& token_type_for(int64_t vocab);

/// A checked .idx file; it points into the bytes that it was read from.
struct IndexedLayout {
  TokenType type;
  uint64_t sequences = 0;
  uint64_t documents = 0;
  uint64_t tokens = 0;
  const std::byte* lengths = nullptr;
  const std::byte* offsets = nullptr;
  const std::byte* starts = nullptr;
};

/// Element `index` of packed little-endian numbers.
template <class T>
[[nodiscard]] T packed(const std::byte* numbers, uint64_t index) {
  T value;
  std::memcpy(&value, numbers + index * sizeof(T), sizeof(T));
  return value;
}

/// Checks every rule of the format against the sizes of both files, so that each sequence can be
/// read without a further look. `file` names the .idx file in messages.
///
/// bin_bytes:  size of the .bin file; none: it is not compared
///
/// Throws:  mh::Error (exit code 5): another magic, version or token type; counts that overflow or
///          do not match the size of the file; a negative length; an offset other than the sum of
///          the lengths before it; documents that do not cut the sequences from the first to the
///          last in order; a .bin file that is longer or shorter than the tokens
[[nodiscard]] IndexedLayout read_index(
    std::span<const std::byte> index, std::optional<uint64_t> bin_bytes, const std::string& file
);

/// The bytes of an .idx file, piece by piece in order. `starts` is the first sequence of each
/// document and, last, the number of sequences.
void write_index(
    const TokenType& type,
    std::span<const int32_t> lengths,
    std::span<const int64_t> starts,
    const std::function<void(std::span<const std::byte>)>& write
);

/// The first bytes of an .idx file, before the lengths.
///
/// entries:  of document bounds: one more than documents
void write_index_header(
    const TokenType& type,
    uint64_t sequences,
    uint64_t entries,
    const std::function<void(std::span<const std::byte>)>& write
);

/// Appends tokens as the .bin file holds them.
///
/// Returns: the first id that the type cannot hold, if there is one; nothing is appended then
[[nodiscard]] std::optional<int32_t> append_tokens(
    const TokenType& type, std::span<const int32_t> ids, std::vector<std::byte>& ret_bytes
);

/// Copies packed tokens.
void read_tokens(const TokenType& type, const std::byte* tokens, std::span<int64_t> ret_ids);

} // namespace mh
