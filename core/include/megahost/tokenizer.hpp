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

/// Ids that stand for no text. A tokenizer has those that its files name.
struct SpecialIds {
  std::optional<int32_t> bos, eos, pad, unk, mask, cls, sep;
  std::vector<int32_t> extra; ///< sentinels such as T5's <extra_id_0>, <extra_id_1>, in order
};

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

  /// Each is below `vocab`.
  [[nodiscard]] virtual SpecialIds special_ids() const { return {}; }

  /// A token as its vocabulary writes it, for people: "\u2581the" where `decode` says "the".
  ///
  /// Throws:  mh::Error (exit code 5) for ids without a token
  [[nodiscard]] virtual std::string token(int32_t id) const { return decode({&id, 1}); }
};

} // namespace mh
