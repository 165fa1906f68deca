#pragma once
/// Tokenizers: bytes to ids and back. No LibTorch here.

#include "megahost/export.hpp"
#include "megahost/kind.hpp"

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace mh {

class MH_API Tokenizer {
public:
  static constexpr Kind kKind = Kind::tokenizer;

  struct Args {};

  virtual ~Tokenizer();

  [[nodiscard]] virtual int64_t vocab() const = 0;
  [[nodiscard]] virtual std::vector<int32_t> encode(std::string_view text) const = 0;
  [[nodiscard]] virtual std::string decode(std::span<const int32_t> ids) const = 0;

  /// Whether a text may come back changed (lower case, unknown words): `decode(encode(text))` is
  /// then no promise.
  [[nodiscard]] virtual bool lossy() const { return false; }

  /// The id that ends a document, if the tokenizer has one.
  [[nodiscard]] virtual std::optional<int32_t> end_of_document() const { return std::nullopt; }
};

} // namespace mh
