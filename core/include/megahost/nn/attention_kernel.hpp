#pragma once
/// Attention as two dispatcher operators, `megahost::attention` and `megahost::attention_backward`:
/// for strategies whose queries and keys lie on several ranks. Models use nn/attention.hpp.

#include "megahost/export.hpp"
#include "megahost/placement.hpp"
#include "megahost/sequence.hpp"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <tuple>
#include <vector>

namespace mh::ops {

/// The mask of one call's queries, in addition to the tensors; see `attention`. A model states it
/// as AttentionMask (nn/attention.hpp).
struct KernelMask {
  bool causal = true;
  int64_t window = 0; ///< only keys fewer than so many positions away; 0: all
  std::optional<at::Tensor> query_index = std::nullopt;    ///< [queries] int64
  std::optional<at::Tensor> key_index = std::nullopt;      ///< [keys] int64
  std::optional<at::Tensor> query_segments = std::nullopt; ///< [queries, batch] int64
  std::optional<at::Tensor> key_segments = std::nullopt;   ///< [keys, batch] int64
  /// Pairs of a query and a key, of one head and sample, that a plan counts for this call: it
  /// cannot read indices. Absent: `visible_pairs` of its shapes.
  std::optional<double> pairs = std::nullopt;
  /// A bias that is added to scaled scores: [heads, distances] in float32 (float64 if q is), for
  /// the distances key's index - query's index from `first_distance` on. It covers the distance of
  /// every pair that is seen.
  std::optional<at::Tensor> bias = std::nullopt;
  int64_t first_distance = 0;
  /// Scaled scores s become cap tanh(s / cap); 0: they stay. Not with a bias.
  double cap = 0;
  /// The content of the indices and segments in host memory: kernels of GPUs take lengths. If
  /// indices are given without it, a GPU computes all scores.
  std::vector<TokenRun> query_runs{}, key_runs{};
  std::vector<DocumentStart> query_documents{}, key_documents{}; ///< documents of whole samples
  /// Logits of one more key of each head, which every query sees and whose value is 0: [heads], or
  /// [heads, queries] where queries have their own. `flash_attention` reads them; `attention` and
  /// `attention_backward` take none, see `join_sinks_`.
  std::optional<at::Tensor> sinks = std::nullopt;
};

/// Pairs of a query and a key that causality and a window leave: what a layer's FLOPs count. The
/// queries are the last of the keys' tokens; documents are not looked at.
[[nodiscard]] MH_API double
visible_pairs(int64_t queries, int64_t keys, bool causal, int64_t window);

/// Dropout of one call's probabilities; see mh::dropout: a head's probability of key j is feature
/// (first_head + head) * all_keys + first_key + j of the query's token.
struct KernelDropout {
  double p = 0;
  int64_t key = 0;
  std::optional<at::Tensor> samples = std::nullopt; ///< [batch] int64; needed if p is not 0
  int64_t first_head = 0;
  int64_t first_key = 0; ///< the first key, where a call sees neighbouring keys of a sample
  int64_t all_keys = 0;  ///< and how many there are in all; 0: the call sees them all
  /// samples[0] in host memory, of which masks of a GPU's kernel are a function; -1: masks must be
  /// the same under every layout.
  int64_t first_sample = 0;
};

/// softmax(scale q kᵀ + bias + mask) v and each query's log-sum-exp; where the mask has a cap,
/// softmax(cap tanh(scale q kᵀ / cap) + mask) v.
///
/// Indices are positions in the sample; without them keys count from 0 and the queries are the last
/// of them (so fewer queries than keys are a continued text). A query that sees no key gives zeros
/// and -inf. Scores never exist in full on the CPU in float32 and bfloat16 and on a GPU in bfloat16
/// and float16 with heads of at most 256 without a bias or a cap; elsewhere this is a composition of plain
/// operations. A GPU's kernel has dropout of its own: its masks are a function of the key, the
/// first sample, head and tokens of a call, so they are the same again in one layout only.
///
/// Shapes:  q [queries, batch, heads, dim], k, v [keys, batch, kv_heads, dim], last dimension
///          contiguous, heads a multiple of kv_heads
///          -> out like q (contiguous), lse [batch, heads, queries] float32 (float64 for float64)
/// Source:  arXiv:2307.08691, arXiv:2305.13245 (grouped), arXiv:2004.05150 (window),
///          arXiv:2408.00118 section 2 (cap)
[[nodiscard]] MH_API std::tuple<at::Tensor, at::Tensor> attention(
    const at::Tensor& q,
    const at::Tensor& k,
    const at::Tensor& v,
    double scale,
    const KernelMask& mask,
    const KernelDropout& dropout = {}
);

/// The gradients of q, k, v and the mask's bias, contiguous, from what `attention` took and gave;
/// without a bias its gradient is empty.
[[nodiscard]] MH_API std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> attention_backward(
    const at::Tensor& dout,
    const at::Tensor& q,
    const at::Tensor& k,
    const at::Tensor& v,
    const at::Tensor& out,
    const at::Tensor& lse,
    double scale,
    const KernelMask& mask,
    const KernelDropout& dropout = {}
);

/// Lets sinks (KernelMask) join what `attention` gave for all keys of the queries: changes `out`,
/// and returns its log-sum-exp. `attention_backward` gives the gradients of q, k and v of that.
///
/// Shapes:  out [queries, batch, heads, dim], lse [batch, heads, queries] -> lse's
/// Source:  a key of score s and value 0 is a part with log-sum-exp s and output 0: arXiv:2307.08691
///          section 3.1
[[nodiscard]] MH_API at::Tensor
join_sinks_(at::Tensor out, const at::Tensor& lse, const at::Tensor& sinks);

/// The gradient of the sinks, from the output and log-sum-exp that they have joined.
///
/// Shapes:  -> the sinks'
[[nodiscard]] MH_API at::Tensor sinks_backward(
    const at::Tensor& dout, const at::Tensor& out, const at::Tensor& lse, const at::Tensor& sinks
);

/// `attention`'s output as a differentiable function of q, k, v, the bias and the sinks; saves
/// them, the output and one number per query.
[[nodiscard]] MH_API at::Tensor flash_attention(
    const at::Tensor& q,
    const at::Tensor& k,
    const at::Tensor& v,
    double scale,
    const KernelMask& mask,
    const KernelDropout& dropout = {}
);

} // namespace mh::ops
