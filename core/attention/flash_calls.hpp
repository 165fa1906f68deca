#pragma once
/// Attention's masks as FlashAttention 2 takes them: which calls, of which tokens, with which
/// lengths and windows. Pure, so that a CPU can compare them with what the masks mean.
///
/// In a sequence of Q queries and K keys the kernel lets query i see the keys j with
///
///   i + K - Q - left <= j <= i + K - Q + right
///
/// (arXiv:2307.08691; in LibTorch's flash_api.cpp and mask.h): the last query is at the last key.
/// -1 is without a bound, and so is what reaches the longest sequence's keys or beyond.

#include "megahost/nn/attention_kernel.hpp"

#include <cstdint>
#include <optional>
#include <vector>

namespace mh::ops {

/// One call of the kernel: neighbouring rows of queries and of keys.
struct FlashCall {
  int64_t first_query = 0, queries = 0; ///< rows
  int64_t first_key = 0, keys = 0;
  /// The ends of its sequences, from 0 on, all samples one after another; empty: each sample is one
  /// sequence.
  std::vector<int32_t> query_ends{}, key_ends{};
  int64_t longest_queries = 0, longest_keys = 0;
  int64_t left = -1, right = -1;
  bool blind = false; ///< some query sees no key
};

/// The calls that make up a mask; none of a query twice. Queries of no call see no key.
///
/// Returns: nothing if there are none that mean the same
/// `mask`:  its host part; runs that are not given are those without indices
[[nodiscard]] std::optional<std::vector<FlashCall>>
flash_calls(const KernelMask& mask, int64_t queries, int64_t keys, int64_t batch);

} // namespace mh::ops
