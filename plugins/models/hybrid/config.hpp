#pragma once
/// The fields of a hybrid decoder, in addition to those of every decoder.

#include <megahost/hugging_face.hpp>
#include <megahost/nn/decoder.hpp>
#include <megahost/nn/mixture_config.hpp>
#include <megahost/schema.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace mh::hybrid {

/// Letters of a pattern, as Megatron-LM has them.
inline constexpr char kMamba = 'M', kDelta = 'G', kAttention = '*', kMlp = '-', kMixture = 'E';
inline constexpr auto kLetters = "MG*-E";

struct HybridConfig : DecoderConfig, MixtureConfig {
  HybridConfig() {
    experts = 0;
    heads = 8;
    norm = "rmsnorm";
    activation = "relu2";
    positions = "none";
    bias = false;
    tied = false;
  }

  std::string pattern = "M-M-M*-";
  std::optional<int64_t> mamba_heads;
  int64_t mamba_head_dim = 64;
  int64_t mamba_groups = 1;
  int64_t mamba_state = 128;
  int64_t mamba_taps = 4;
  bool mamba_conv_bias = true;
  double mamba_least_step = 0;
  int64_t mamba_chunk = 64;
  int64_t delta_key_heads = 4;
  std::optional<int64_t> delta_heads;
  int64_t delta_key_dim = 128;
  int64_t delta_dim = 128;
  int64_t delta_taps = 4;
  int64_t delta_chunk = 64;

  /// The kind of layer `index`: a letter of the pattern.
  [[nodiscard]] char kind(int64_t index) const;

  /// Layers that are mixtures of experts.
  [[nodiscard]] int64_t mixtures() const;

  /// mamba_heads, or what its absence means.
  [[nodiscard]] int64_t mamba_head_count() const;

  /// delta_heads, or what its absence means.
  [[nodiscard]] int64_t delta_head_count() const;
};

void hybrid_fields(Fields<HybridConfig>& f);

/// Sizes of a small hybrid, see model_scale.hpp.
Table scaled(const HybridConfig& whole, const ModelScale& to);

/// transformers' Mamba2, NemotronH and Qwen3Next.
[[nodiscard]] HfMapping hugging_face_mapping();

/// Names of a model of these complete fields; empty where transformers has no counterpart.
[[nodiscard]] std::vector<HfTensor> hugging_face_names(const HybridConfig& config);

/// Names of a model of these complete fields at Megatron-LM; empty where its MambaModel is another.
[[nodiscard]] std::vector<HfTensor> megatron_names(const HybridConfig& config);

} // namespace mh::hybrid
