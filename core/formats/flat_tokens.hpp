#pragma once
/// Files that are token ids one after the other: nanoGPT's .bin and OLMo's .npy without a header,
/// llm.c's .bin with one, and arrays of numpy. No LibTorch.
///
/// Source:  llm.c, dev/data/data_common.py: i32[256], of which 0 is the magic number, 1 the version
///          and 2 the count of ids that follow

#include "core/formats/indexed.hpp"

#include <span>
#include <string>

namespace mh {

struct FlatTokens {
  TokenType type; ///< int32 where the file has uint32: ids fit into it
  std::span<const std::byte> ids;

  [[nodiscard]] uint64_t count() const { return ids.size() / type.bytes; }
};

/// The ids of a file.
///
/// type:    of files without a header: "uint16", "uint32", "int32", ...; none if not known
/// Throws:  mh::Error (exit code 5) for a header that does not fit the file, a file that is no
///          whole number of ids, and one without a header if no type is given
[[nodiscard]] FlatTokens read_flat_tokens(
    std::span<const std::byte> bytes, const std::string& type, const std::string& file
);

} // namespace mh
