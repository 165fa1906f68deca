#include "config.hpp"

#include <algorithm>

namespace {

std::string moe_pattern(const MoeConfig& c) {
  return !c.moe_pattern.empty() && c.moe_every != 1
             ? "moe_every and moe_pattern both say which layers have experts; give one of them"
             : "";
}

std::string first_dense(const MoeConfig& c) {
  return c.first_dense > c.layers ? "first_dense " + std::to_string(c.first_dense) +
                                        " is greater than layers " + std::to_string(c.layers)
                                  : "";
}

} // namespace

bool MoeConfig::is_moe(int64_t index) const {
  if (index < first_dense) {
    return false;
  }
  return moe_pattern.empty()
             ? index % moe_every == 0
             : moe_pattern[static_cast<size_t>(index) % moe_pattern.size()] == "moe";
}

mh::MixtureSpec MoeConfig::mixture(const mh::FeedForwardSpec& dense) const {
  int64_t with_experts = is_moe(layers - 1) ? mtp_layers : 0; // their layers are as the last one
  for (int64_t i = 0; i < layers; ++i) {
    with_experts += is_moe(i) ? 1 : 0;
  }
  return MixtureConfig::mixture(dense, with_experts);
}

void moe_fields(mh::Fields<MoeConfig>& f) {
  using C = MoeConfig;
  mh::decoder_fields(f);
  mh::mixture_fields(f, /*fewest=*/1);
  f.add("first_dense", &C::first_dense, "so many layers at the start have no experts").at_least(0);
  f.add("moe_every", &C::moe_every, "layers 0, n, 2n, ... have experts, the others are dense")
      .at_least(1);
  f.add(
       "moe_pattern",
       &C::moe_pattern,
       "which layers have experts, repeated over the layers; as moe_every says if empty"
  )
      .one_of({"moe", "dense"});
  f.check("first_dense", first_dense);
  f.check("moe_pattern", moe_pattern);
}

mh::Table scaled(const MoeConfig& whole, const mh::ModelScale& to) {
  mh::Table own = mh::scaled(whole, to);
  own.set("first_dense", std::min(whole.first_dense, to.uneven ? 1 : to.layers - 1));
  scale_mixture(whole, whole.hidden, to, own);
  return own;
}
