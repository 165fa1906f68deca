#pragma once
/// The fields of a decoder some of whose layers have a mixture of experts.

#include <megahost/nn/decoder.hpp>
#include <megahost/nn/mixture_config.hpp>
#include <megahost/schema.hpp>

#include <cstdint>
#include <string>
#include <vector>

struct MoeConfig : mh::LlamaConfig, mh::MixtureConfig {
  int64_t first_dense = 0;
  int64_t moe_every = 1;
  std::vector<std::string> moe_pattern;

  /// Whether layer `index` has experts.
  [[nodiscard]] bool is_moe(int64_t index) const;

  /// The mixture of the layers that have experts; ffn_hidden is filled in.
  [[nodiscard]] mh::MixtureSpec mixture(const mh::FeedForwardSpec& dense) const;
};

void moe_fields(mh::Fields<MoeConfig>& f);

/// Sizes of a small mixture, see model_scale.hpp.
mh::Table scaled(const MoeConfig& whole, const mh::ModelScale& to);
