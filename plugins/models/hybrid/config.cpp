#include "config.hpp"

#include <algorithm>
#include <string>

namespace mh::hybrid {

namespace {

std::string text(int64_t number) {
  return std::to_string(number);
}

bool has(const HybridConfig& c, char letter) {
  return c.pattern.find(letter) != std::string::npos;
}

std::string pattern(const HybridConfig& c) {
  const std::string letters =
      "; M is Mamba-2, G gated DeltaNet, * attention, - a feed-forward, E a mixture of experts";
  if (c.pattern.empty()) {
    return "it has no letter" + letters;
  }
  const auto wrong = c.pattern.find_first_not_of(kLetters);
  return wrong == std::string::npos ? ""
                                    : "letter " + text(static_cast<int64_t>(wrong) + 1) + " is `" +
                                          c.pattern[wrong] + "`" + letters;
}

std::string experts(const HybridConfig& c) {
  return has(c, kMixture) && c.experts == 0
             ? "the pattern has mixtures (E); say of how many experts"
         : !has(c, kMixture) && c.experts > 0
             ? "no layer of the pattern is a mixture (E); leave experts out, or add an E"
             : "";
}

std::string mamba_heads(const HybridConfig& c) {
  return has(c, kMamba) && !c.mamba_heads && 2 * c.hidden % c.mamba_head_dim != 0
             ? "2 hidden = " + text(2 * c.hidden) + " is not divisible by mamba_head_dim " +
                   text(c.mamba_head_dim) + ", and there is no mamba_heads"
             : "";
}

std::string mamba_groups(const HybridConfig& c) {
  return has(c, kMamba) && c.mamba_head_count() % c.mamba_groups != 0
             ? "mamba_heads " + text(c.mamba_head_count()) + " are not divisible by mamba_groups " +
                   text(c.mamba_groups)
             : "";
}

std::string delta_heads(const HybridConfig& c) {
  return has(c, kDelta) && c.delta_head_count() % c.delta_key_heads != 0
             ? "delta_heads " + text(c.delta_head_count()) +
                   " are not divisible by delta_key_heads " + text(c.delta_key_heads)
             : "";
}

std::string norm_placement(const HybridConfig& c) {
  return c.norm_placement != "pre" ? "a hybrid's norms are before its parts (pre)" : "";
}

std::string parallel_residual(const HybridConfig& c) {
  return c.parallel_residual ? "a hybrid's layer has one part, with nothing to run next to it" : "";
}

std::string causal(const HybridConfig& c) {
  return !c.causal ? "a hybrid reads forward, and its mixers still would with causal = false" : "";
}

} // namespace

char HybridConfig::kind(int64_t index) const {
  return pattern[static_cast<size_t>(index) % pattern.size()];
}

int64_t HybridConfig::mixtures() const {
  int64_t found = kind(layers - 1) == kMixture ? mtp_layers : 0; // whose layers are as the last one
  for (int64_t i = 0; i < layers; ++i) {
    found += kind(i) == kMixture ? 1 : 0;
  }
  return found;
}

int64_t HybridConfig::mamba_head_count() const {
  return mamba_heads.value_or(2 * hidden / mamba_head_dim);
}

int64_t HybridConfig::delta_head_count() const {
  return delta_heads.value_or(delta_key_heads);
}

void hybrid_fields(Fields<HybridConfig>& f) {
  using C = HybridConfig;
  decoder_fields(f);
  f.add(
      "pattern",
      &C::pattern,
      "what each layer is, repeated over the layers: M Mamba-2, G gated DeltaNet, * attention, "
      "- a feed-forward, E a mixture of experts"
  );
  f.add("mamba_heads", &C::mamba_heads, "heads of Mamba-2; 2 hidden / mamba_head_dim if absent")
      .at_least(1);
  f.add("mamba_head_dim", &C::mamba_head_dim, "elements of such a head").at_least(1);
  f.add("mamba_groups", &C::mamba_groups, "groups of heads, which share what they read and write")
      .at_least(1);
  f.add("mamba_state", &C::mamba_state, "numbers that each element of a head keeps").at_least(1);
  f.add("mamba_taps", &C::mamba_taps, "tokens that the short convolution sees, itself counted")
      .unit("tokens")
      .at_least(2);
  f.add("mamba_conv_bias", &C::mamba_conv_bias, "a bias in the short convolution");
  f.add("mamba_least_step", &C::mamba_least_step, "steps of the state are at least so long")
      .at_least(0);
  f.add(
       "mamba_chunk",
       &C::mamba_chunk,
       "tokens that are computed at once; changes the speed and no result"
  )
      .unit("tokens")
      .at_least(1);
  f.add("delta_key_heads", &C::delta_key_heads, "heads of queries and keys of gated DeltaNet")
      .at_least(1);
  f.add(
       "delta_heads",
       &C::delta_heads,
       "heads of values, neighbouring ones of which share a query and a key; as many as "
       "delta_key_heads if absent"
  )
      .at_least(1);
  f.add("delta_key_dim", &C::delta_key_dim, "elements of a query and a key").at_least(1);
  f.add("delta_dim", &C::delta_dim, "elements of a value; a head keeps delta_key_dim of them")
      .at_least(1);
  f.add("delta_taps", &C::delta_taps, "tokens that its short convolution sees, itself counted")
      .unit("tokens")
      .at_least(2);
  f.add(
       "delta_chunk",
       &C::delta_chunk,
       "tokens that are computed at once, fastest for powers of two; changes the speed and no "
       "result"
  )
      .unit("tokens")
      .at_least(1);
  mixture_fields(f, /*fewest=*/0);
  f.check("pattern", pattern);
  f.check("experts", experts);
  f.check("mamba_heads", mamba_heads);
  f.check("mamba_groups", mamba_groups);
  f.check("delta_heads", delta_heads);
  f.check("norm_placement", norm_placement);
  f.check("parallel_residual", parallel_residual);
  f.check("causal", causal);
}

Table scaled(const HybridConfig& whole, const ModelScale& to) {
  Table own = mh::scaled(static_cast<const DecoderConfig&>(whole), to);
  std::string kinds; // few layers have each kind that the model has
  for (const char kind : {kMamba, kDelta, kAttention, kMlp, kMixture}) {
    if (has(whole, kind)) {
      kinds += kind;
    }
  }
  own.set("pattern", kinds);
  own.set("mamba_heads", 2 * to.heads);
  own.set("mamba_head_dim", to.uneven ? 6 : std::max<int64_t>(1, to.hidden / to.heads));
  own.set("mamba_groups", whole.mamba_groups <= 2 ? whole.mamba_groups : to.heads);
  own.set("mamba_state", std::min<int64_t>(whole.mamba_state, to.uneven ? 10 : 32));
  own.set("mamba_chunk", std::min<int64_t>(whole.mamba_chunk, 5));
  own.set("delta_key_heads", whole.delta_key_heads <= 2 ? whole.delta_key_heads : to.heads);
  own.set("delta_heads", 2 * to.heads);
  own.set("delta_key_dim", std::min<int64_t>(whole.delta_key_dim, to.uneven ? 10 : 32));
  own.set("delta_dim", to.uneven ? 6 : std::max<int64_t>(1, to.hidden / to.heads));
  own.set("delta_chunk", std::min<int64_t>(whole.delta_chunk, 5));
  if (has(whole, kMixture)) {
    scale_mixture(whole, whole.hidden, to, own);
  }
  return own;
}

} // namespace mh::hybrid
