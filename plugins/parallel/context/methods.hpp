#pragma once
/// The ways in which attention reaches the tokens of other ranks of cp. All of them shard tokens
/// in a zigzag: of 2 n pieces rank i of n holds pieces i and 2 n - 1 - i, so that causal attention
/// is equal work for all ranks.

#include <megahost/strategy.hpp>

#include <cstdint>
#include <memory>
#include <optional>

namespace context_parallel {

/// Keys and values travel round the ranks; partial results are merged by their log-sum-exp.
///
/// Source:  arXiv:2310.01889 (ring attention), Llama 3's zigzag
std::unique_ptr<const mh::AttentionMethod> make_ring();

/// Each rank gathers all keys and values for its own queries.
std::unique_ptr<const mh::AttentionMethod> make_all_gather();

/// Heads are exchanged for tokens, so that each rank attends over whole samples with some heads.
///
/// Source:  arXiv:2309.14509 (DeepSpeed Ulysses)
std::unique_ptr<const mh::AttentionMethod> make_all_to_all();

/// Segments [tokens, batch] of all ranks' tokens, in the order of the samples; none without.
///
/// Ranks:  collective over cp, once per microbatch and sequence
std::optional<at::Tensor>
all_segments(const std::optional<at::Tensor>& segments, mh::StepContext& context);

/// Pairs of queries and keys, per head and sample, that the mean rank has; q and k are a rank's.
double pairs_of_rank(
    const at::Tensor& q,
    const at::Tensor& k,
    const mh::ops::KernelMask& mask,
    const mh::StepContext& context
);

/// Indices 0, 1, ..., length - 1, as `like` is.
at::Tensor in_order(int64_t length, const at::Tensor& like);

} // namespace context_parallel
