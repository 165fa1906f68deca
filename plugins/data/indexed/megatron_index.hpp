#pragma once
/// Megatron's three arrays: which documents follow each other, where samples begin in that stream,
/// and in which order samples are read.
///
/// Source:  megatron-core 0.16.1, megatron/core/datasets/gpt_dataset.py and helpers.cpp

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace mh::indexed {

/// Integers in memory or in a mapped file.
class IndexArray {
public:
  enum class Type : uint8_t { int32, uint32, int64 };

  IndexArray() = default;

  /// An array of numbers that were made.
  template <class T>
  explicit IndexArray(std::vector<T> numbers)
      : type_(
            sizeof(T) == 8 ? Type::int64
            : T(-1) < 0    ? Type::int32
                           : Type::uint32
        )
      , size_(numbers.size()) {
    auto held = std::make_shared<std::vector<T>>(std::move(numbers));
    bytes_ = {reinterpret_cast<const std::byte*>(held->data()), held->size() * sizeof(T)};
    owner_ = std::move(held);
  }

  /// An array of numbers that `owner` keeps.
  IndexArray(Type type, std::span<const std::byte> bytes, std::shared_ptr<const void> owner)
      : type_(type)
      , size_(bytes.size() / (type == Type::int64 ? 8 : 4))
      , bytes_(bytes)
      , owner_(std::move(owner)) {}

  [[nodiscard]] Type type() const { return type_; }

  [[nodiscard]] uint64_t size() const { return size_; }

  [[nodiscard]] std::span<const std::byte> bytes() const { return bytes_; }

  [[nodiscard]] int64_t operator[](uint64_t index) const;

private:
  Type type_ = Type::int32;
  uint64_t size_ = 0;
  std::span<const std::byte> bytes_;
  std::shared_ptr<const void> owner_;
};

/// The terms that the arrays depend on, in addition to the lengths of the documents.
struct IndexTerms {
  uint64_t first = 0, last = 0;     ///< documents of the split: [first, last)
  std::optional<int64_t> samples{}; ///< samples that are asked for; none: one epoch
  int64_t seq = 0;
  uint32_t seed = 0;
  bool drop_last_partial = true; ///< false: the last sample may have less than seq tokens
  bool extra_token = true;       ///< samples share a token: the last label of one begins the next
};

struct MegatronIndex {
  IndexArray documents; ///< int32: every document of the split once an epoch
  IndexArray samples;   ///< pairs (place in `documents`, token of it), one more than samples
  IndexArray shuffle;   ///< sample k is number shuffle[k] of the stream

  [[nodiscard]] uint64_t size() const { return shuffle.size(); }
};

/// How often the documents are read, and how many samples that makes.
struct IndexSizes {
  int64_t epochs = 1;
  int64_t samples = 0;
  /// Samples before the last epoch if that one is shuffled on its own: it is read in part only.
  std::optional<int64_t> before_last{};
};

/// tokens:   of the split's documents
/// Returns:  none where there is no token, which Megatron loops over forever, or no sample
[[nodiscard]] std::optional<IndexSizes> index_sizes(const IndexTerms& terms, int64_t tokens);

/// lengths:  of all documents of the dataset; the split's hold `tokens`
[[nodiscard]] MegatronIndex
make_index(const IndexTerms& terms, const IndexSizes& sizes, std::span<const int32_t> lengths);

} // namespace mh::indexed
