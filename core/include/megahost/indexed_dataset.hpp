#pragma once
/// Tokenised corpora on disk, in Megatron's format: PREFIX.bin and PREFIX.idx, mapped or read.
/// No LibTorch here.
///
/// ```cpp
/// mh::IndexedDataset corpus("corpus_text_document");
/// std::vector<int64_t> ids(corpus.length(0));
/// corpus.read(0, 0, ids);
/// ```

#include "megahost/export.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

namespace mh {

/// Sequences of token ids, and which of them make a document. For language models a document is one
/// sequence; elsewhere a sequence is a sentence.
///
/// The files must not be cut while they are open.
class MH_API IndexedDataset {
public:
  enum class Access : uint8_t {
    mapped, ///< both files are memory maps
    read,   ///< the index is held in memory, tokens are read when they are asked for
  };

  /// Opens both files and checks every rule of the format. A prefix that ends in .bin or .idx means
  /// the pair that the file belongs to.
  ///
  /// Throws:  mh::Error (exit code 5) if a file is missing, cannot be read, or breaks a rule
  explicit IndexedDataset(std::string prefix, Access access = Access::mapped);
  ~IndexedDataset();
  IndexedDataset(IndexedDataset&&) noexcept;
  IndexedDataset& operator=(IndexedDataset&&) noexcept;

  [[nodiscard]] const std::string& prefix() const { return prefix_; }

  [[nodiscard]] uint64_t sequences() const;
  [[nodiscard]] uint64_t documents() const;
  [[nodiscard]] uint64_t tokens() const;

  /// "uint16", "int32", ...
  [[nodiscard]] std::string_view type() const;
  [[nodiscard]] uint64_t token_bytes() const;

  /// Tokens of a sequence.
  [[nodiscard]] uint64_t length(uint64_t sequence) const;

  /// Tokens of all sequences before this one; `sequence` may be `sequences()`.
  [[nodiscard]] uint64_t begin(uint64_t sequence) const;

  /// The first sequence of a document; `document` may be `documents()`. A document may be empty.
  [[nodiscard]] uint64_t document_begin(uint64_t document) const;

  /// Copies the tokens of a sequence from `first` on; all must lie in it. Ids are not checked
  /// against any vocabulary.
  ///
  /// Thread:  any
  /// Throws:  mh::Error (exit code 5) if the file cannot be read
  void read(uint64_t sequence, uint64_t first, std::span<int64_t> ret_ids) const;

  struct PlacedId {
    int64_t id = 0;
    uint64_t document = 0;
    uint64_t token = 0; ///< index in the document
  };

  /// The first id found that is below 0, or not below `vocab`. All tokens are looked at, or of more
  /// than `most`, so many in equal distances.
  ///
  /// Thread:  any
  /// Throws:  mh::Error (exit code 5) if the file cannot be read
  [[nodiscard]] std::optional<PlacedId> find_outside(int64_t vocab, uint64_t most = 1 << 20) const;

private:
  void read_from(uint64_t token, std::span<int64_t> ret_ids) const;
  struct Files;
  std::string prefix_;
  std::unique_ptr<Files> files_;
};

/// The bounds of a part of a split in its corpus, from 0 to 1. `shares` sum to 1.
///
/// Source:  Megatron-LM, blended_megatron_dataset_config.py, convert_split_vector_to_split_matrix
[[nodiscard]] MH_API std::pair<double, double>
split_bounds(const std::array<double, 3>& shares, size_t part);

/// The documents [first, last) of `count` between two bounds, rounded as Python rounds, halves to
/// even.
[[nodiscard]] MH_API std::pair<uint64_t, uint64_t>
split_range(std::pair<double, double> bounds, uint64_t count);

} // namespace mh
