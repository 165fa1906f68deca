#pragma once
/// Tokenised documents in memory, and which of them belong to which split.

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <variant>
#include <vector>

namespace mh::text {

/// Token ids, one, two or four bytes each, as the vocabulary needs.
class TokenStore {
public:
  explicit TokenStore(int64_t vocab);

  void append(std::span<const int32_t> ids);
  [[nodiscard]] uint64_t size() const;
  /// Copies the tokens from `begin` on.
  void read(uint64_t begin, std::span<int64_t> ret_ids) const;

private:
  std::variant<std::vector<uint8_t>, std::vector<uint16_t>, std::vector<uint32_t>> ids_;
};

/// Consecutive tokens of a store that go to one split.
struct Document {
  std::string name;
  uint64_t begin = 0;
  uint64_t end = 0;

  [[nodiscard]] uint64_t size() const { return end - begin; }
};

/// Documents longer than `limit` in equal pieces of at most `limit` tokens.
[[nodiscard]] std::vector<Document> cut(const std::vector<Document>& documents, uint64_t limit);

/// The documents of one split, read as one sequence.
class SplitText {
public:
  SplitText() = default;
  /// Documents in the order of the store.
  explicit SplitText(const std::vector<Document>& documents);

  [[nodiscard]] uint64_t size() const { return size_; }

  void read(const TokenStore& store, uint64_t begin, std::span<int64_t> ret_ids) const;

private:
  struct Piece {
    uint64_t at = 0;    // in the slice
    uint64_t begin = 0; // in the store
  };

  std::vector<Piece> pieces_;
  uint64_t size_ = 0;
};

/// Splits whole documents into train, valid and test, in about the given shares of tokens.
///
/// The order is that of a hash of the names: valid takes documents from its front until
/// its share is full, then test, and train the rest. It depends on nothing but names and sizes,
/// least of all on the run's seed: a run with another seed is compared on the same validation set,
/// and a later evaluation never meets text that was trained on. Valid and test, if their share is
/// not 0, get `at_least` tokens, as long as there are any.
[[nodiscard]] std::array<SplitText, 3> split_documents(
    const std::vector<Document>& documents, const std::array<double, 3>& shares, uint64_t at_least
);

} // namespace mh::text
