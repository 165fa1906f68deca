#pragma once
/// How a recipe is made small: by `--scale`, and by `megahost check` to compare layouts.
///
/// The core shrinks `seq_length` and the fields of the names layers, hidden, heads, kv_heads,
/// head_dim, ffn_hidden, experts and vocab. An architecture that has further sizes gives them:
///
/// ```cpp
/// struct Config { int64_t hidden, encoder_layers, adapter_hidden; };
/// static mh::Table scaled(const Config& whole, const mh::ModelScale& to) {
///   return {{"encoder_layers", std::min(whole.encoder_layers, to.layers)},
///           {"adapter_hidden", to.narrowed(whole.adapter_hidden, whole.hidden)}};
/// }
/// ```
///
/// A learning-rate schedule gives its lengths for a run of `length` in the same way.
///
/// A class without one whose Config derives from DecoderConfig has that of DecoderConfig
/// (nn/decoder_config.hpp), which one with further sizes adds to.

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace mh {

struct ModelScale {
  // The core's choices for the small model; 0 if the architecture has no such field.
  int64_t layers = 0;
  int64_t hidden = 0;
  int64_t heads = 0;
  int64_t seq_length = 0;
  int64_t length = 0; ///< length of the run: optimizer steps, or samples where it counts those

  /// The sizes are for a comparison of layouts, whatever the model's own are: such that many of
  /// them are split unevenly. Otherwise they keep the proportions of the whole model.
  bool uneven = false;

  /// A width that keeps its share of `hidden`, in steps of `step`, `least` of them or more.
  [[nodiscard]] int64_t
  narrowed(int64_t width, int64_t whole_hidden, int64_t step = 8, int64_t least = 1) const {
    if (whole_hidden == 0) {
      return width;
    }
    const double share = static_cast<double>(width) / static_cast<double>(whole_hidden);
    const double steps = share * static_cast<double>(hidden) / static_cast<double>(step);
    return std::max<int64_t>(least, std::llround(steps)) * step;
  }
};

} // namespace mh
