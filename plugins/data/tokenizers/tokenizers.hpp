#pragma once
/// The two tokenizers that need no file: bytes, and numbers that are ids already.

#include <megahost/schema.hpp>
#include <megahost/tokenizer.hpp>

#include <cstdint>
#include <iterator>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace mh {

/// Every byte is an id: 256 of them. Any input, valid UTF-8 or not, comes back unchanged. Behind
/// them there may be special tokens, which a text holds by their names.
class ByteTokenizer final : public Tokenizer {
public:
  struct Config {
    bool special = false;
    int64_t extra_ids = 0;
  };

  static void fields(Fields<Config>& fields);
  ByteTokenizer(const Config& config, const Args& args);

  [[nodiscard]] int64_t vocab() const override { return 256 + std::ssize(names_); }

  [[nodiscard]] std::vector<int32_t> encode(std::string_view text) const override;
  /// Throws:  mh::Error (exit code 5) for ids that are none
  [[nodiscard]] std::string decode(std::span<const int32_t> ids) const override;

  /// Only with special tokens.
  [[nodiscard]] std::optional<int32_t> end_of_document() const override { return special_.eos; }

  [[nodiscard]] SpecialIds special_ids() const override { return special_; }

private:
  int32_t add(std::string name);

  std::vector<std::string> names_; // names of the ids from 256 on
  SpecialIds special_;
};

/// Texts are ids in decimal, separated by white space: for data that was tokenised elsewhere.
class NullTokenizer final : public Tokenizer {
public:
  struct Config {
    int64_t vocab = 0;
  };

  static void fields(Fields<Config>& fields);
  NullTokenizer(const Config& config, const Args& args);

  [[nodiscard]] int64_t vocab() const override { return vocab_; }

  /// Throws:  mh::Error (exit code 5) for words that are no ids below `vocab`
  [[nodiscard]] std::vector<int32_t> encode(std::string_view text) const override;
  [[nodiscard]] std::string decode(std::span<const int32_t> ids) const override;

private:
  int64_t vocab_;
};

} // namespace mh
