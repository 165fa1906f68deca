#pragma once
/// The fields of a mixture of experts, in addition to those of every decoder.

#include <megahost/nn/decoder.hpp>
#include <megahost/nn/experts.hpp>
#include <megahost/schema.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

struct MoeConfig : mh::DecoderConfig {
  MoeConfig() {
    norm = "rmsnorm";
    activation = "swiglu";
    positions = "rope";
    bias = false;
    tied = false;
  }

  int64_t experts = 8;
  int64_t experts_per_token = 2;
  std::optional<int64_t> expert_hidden;
  int64_t first_dense = 0;
  int64_t moe_every = 1;
  std::vector<std::string> moe_pattern;
  std::optional<int64_t> shared_hidden;
  bool shared_gate = false;
  std::string router = "topk_softmax";
  std::optional<bool> router_normalise;
  double router_scale = 1;
  int64_t router_groups = 1;
  int64_t router_groups_chosen = 1;
  std::vector<std::string> balance = {"auxiliary"};
  double balance_weight = 1e-2;
  double balance_bias_rate = 1e-3;
  double z_weight = 0;
  std::optional<double> capacity_factor;
  std::optional<std::string> capacity_drop;
  bool capacity_pad = false;

  /// Whether layer `index` has experts.
  [[nodiscard]] bool is_moe(int64_t index) const;

  /// Whether a bias steers the choice of experts.
  [[nodiscard]] bool has_bias() const;

  /// The mixture of the layers that have experts; ffn_hidden is filled in.
  [[nodiscard]] mh::MixtureSpec mixture(const mh::FeedForwardSpec& dense) const;
};

void moe_fields(mh::Fields<MoeConfig>& f);

/// Sizes of a small mixture, see model_scale.hpp.
mh::Table scaled(const MoeConfig& whole, const mh::ModelScale& to);
