#pragma once
/// Byte-pair encoding of one word.

#include "vocabulary.hpp"

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace mh::gpt2 {

/// Appends the ids of words. It remembers words; use one for each thread.
class WordEncoder {
public:
  explicit WordEncoder(const Vocabulary& vocabulary)
      : vocabulary_(vocabulary) {}

  /// The pair of lowest rank is merged, the leftmost first, until none is left: O(n log n).
  ///
  /// Source:  arXiv:1508.07909, algorithm 1, with ranks
  void encode(std::string_view word, std::vector<int32_t>& ret_ids);

private:
  struct Symbol {
    int32_t id;
    int32_t before, after; // places of the neighbours, or kNone
  };

  struct Hash {
    using is_transparent = void;

    size_t operator()(std::string_view word) const { return std::hash<std::string_view>()(word); }
  };

  void merge(std::string_view word);
  void offer(int32_t left);

  const Vocabulary& vocabulary_;
  std::unordered_map<std::string, std::vector<int32_t>, Hash, std::equal_to<>> remembered_;
  std::vector<Symbol> symbols_;
  std::vector<uint64_t> heap_; // rank and place of the left one
};

} // namespace mh::gpt2
