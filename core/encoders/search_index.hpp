#pragma once
/// An index of embeddings: a row and a text for each block, on disk and in memory, and exact search
/// among them.
///
///   FOLDER/embeddings.npy   float32 [blocks, dim], as numpy.load reads it
///   FOLDER/blocks.jsonl     {"text": "..."} for each row

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace mh {

struct SearchIndex {
  at::Tensor embeddings; ///< [blocks, dim] float32 on the host
  std::vector<std::string> texts;
  std::vector<int64_t> numbers{}; ///< numbers of blocks, by a corpus; empty where they come from a file
};

struct FoundBlock {
  int64_t row = 0;
  double score = 0;
};

/// The `most` rows with the highest inner product for each query, the best first: all rows are
/// compared.
///
/// Shapes:  queries [queries, dim] float32
[[nodiscard]] std::vector<std::vector<FoundBlock>>
search(const SearchIndex& index, const at::Tensor& queries, int64_t most);

/// The share of queries whose own block, by its number, is among the first k that were found.
[[nodiscard]] double recall_at(
    int64_t k,
    const std::vector<std::vector<FoundBlock>>& found,
    const std::vector<int64_t>& own,
    const SearchIndex& index
);

/// Writes the folder; files that are there are replaced.
void write_index(const SearchIndex& index, const std::filesystem::path& folder);

/// Throws:  mh::Error (exit code 5) for files that are missing, damaged or do not belong together
[[nodiscard]] SearchIndex read_index(const std::filesystem::path& folder);

} // namespace mh
