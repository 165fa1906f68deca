#pragma once
/// Rotary position embedding.

#include "megahost/context.hpp"
#include "megahost/export.hpp"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace mh {

struct RotarySpec {
  int64_t dim = 0; ///< rotated elements of each head, even; the rest pass through
  double base = 10000;
  std::string scaling = "none";         ///< "none", "linear", "llama3", "yarn", "longrope"
  double factor = 1;                    ///< all scalings
  double low_freq = 1, high_freq = 4;   ///< llama3: bounds in wavelengths of the original context
  double beta_slow = 1, beta_fast = 32; ///< yarn: bounds in turns over the original context
  bool truncate = true;                 ///< yarn: its bounds are rounded to whole pairs
  double original_length = 8192;        ///< llama3, yarn, longrope
  /// yarn, longrope: of cosines and sines; if absent 0.1 ln(factor) + 1, and of longrope
  /// sqrt(1 + ln(factor) / ln(original_length))
  std::optional<double> attention{};
  std::vector<double> wavelengths{}; ///< longrope: factor of the wavelength of each pair
};

/// Radians per position of each pair.
///
/// Shapes:  -> [dim/2]
/// Source:  arXiv:2104.09864 section 3.2; "llama3" as in Llama 3.1's reference (`apply_scaling`);
///          "yarn" arXiv:2309.00071 section 3.2, bounds rounded to whole pairs as its reference
///          does if `truncate`; "longrope" arXiv:2402.13753 section 3.3
/// Throws:  mh::Error if `wavelengths` are not as many as pairs
[[nodiscard]] MH_API std::vector<double> rotary_frequencies(const RotarySpec& spec);

/// Cosines and sines of the context's positions, made once per microbatch. YaRN's and LongRoPE's are
/// scaled, so that scores are by the square.
///
/// Shapes:  -> [2, seq, 1 or batch, 1, dim/2] float32
[[nodiscard]] MH_API at::Tensor rotary_table(const RotarySpec& spec, StepContext& context);

/// Rotates the first `2 * table.size(-1)` elements of each head, halves rotated (x1, x2) ->
/// (x1 cos - x2 sin, x2 cos + x1 sin), computed in float32.
///
/// Shapes:  x [seq, batch, heads, head_dim]; table as above -> x's
/// Source:  arXiv:2104.09864 equation 34, in the layout of GPT-NeoX
[[nodiscard]] MH_API at::Tensor rotary(const at::Tensor& x, const at::Tensor& table);

/// Rotates the first `rotated` of tensors whose heads lie one behind the other, as a GEMM
/// makes queries, keys and values; the others are returned as they are. One operation, and one
/// backward.
///
/// Shapes:  packed [seq, batch, sum of heads, head_dim] -> [seq, batch, heads of each, head_dim]
[[nodiscard]] MH_API std::vector<at::Tensor> rotary(
    const at::Tensor& packed,
    const std::vector<int64_t>& heads,
    int64_t rotated,
    const at::Tensor& table
);

/// Heads whose pairs are neighbours, arranged as `rotary` takes them: of the first `rotated` elements
/// those at even places, then those at odd ones. Scores of queries and keys that both are arranged so
/// are what they were.
///
/// Shapes:  x [..., head_dim], `rotated` even and at most head_dim -> x's
/// Source:  arXiv:2104.09864 equation 34, whose pairs are neighbours
[[nodiscard]] MH_API at::Tensor adjacent_to_halves(const at::Tensor& x, int64_t rotated);

} // namespace mh
