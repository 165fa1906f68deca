#include "chunks.hpp"

#include <algorithm>

namespace mh::hybrid {

std::vector<TokenRun> chunk_rows(const std::vector<TokenRun>& runs, int64_t size) {
  std::vector<TokenRun> chunks;
  int64_t row = 0;
  for (const TokenRun& run : runs) {
    for (int64_t first = 0; first < run.count; first += size) {
      chunks.push_back({row + first, std::min(size, run.count - first)});
    }
    row += run.count;
  }
  return chunks;
}

at::Tensor AlikeChunks::rows_of(const at::Tensor& all) const {
  return all.narrow(0, rows.first, count * rows.count).unflatten(0, {count, rows.count});
}

std::vector<AlikeChunks> alike(const std::vector<TokenRun>& chunks, int64_t most_pairs) {
  std::vector<AlikeChunks> groups;
  for (size_t i = 0; i < chunks.size(); ++i) {
    const int64_t pairs = chunks[i].count * chunks[i].count;
    const bool goes_on = i > 0 && chunks[i].count == chunks[i - 1].count &&
                         chunks[i].first == chunks[i - 1].first + chunks[i - 1].count &&
                         groups.back().count < most_pairs / pairs;
    if (goes_on) {
      ++groups.back().count;
    } else {
      groups.push_back({static_cast<int64_t>(i), 1, chunks[i]});
    }
  }
  return groups;
}

} // namespace mh::hybrid
