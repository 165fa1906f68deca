// The contradictions between fields of a decoder.

#include "megahost/nn/decoder_config.hpp"

#include "core/decoder/field_conditions.hpp"
#include "megahost/nn/feed_forward.hpp"
#include "megahost/nn/norm.hpp"

#include <algorithm>
#include <cmath>
#include <string_view>
#include <utility>

namespace mh {

namespace {

/// Elements of a head that rotate, in pairs.
int64_t rotated_pairs(const DecoderConfig& c, int64_t head_dim) {
  return c.kv_rank ? c.rope_head_dim.value_or(64) / 2
                   : std::llround(static_cast<double>(head_dim) * c.rope_share / 2);
}

/// So many factors, the last one as often as others are missing.
Value::Array resized(const std::vector<double>& factors, int64_t pairs) {
  Value::Array made;
  for (int64_t i = 0; i < pairs; ++i) {
    made.emplace_back(factors[std::min(static_cast<size_t>(i), factors.size() - 1)]);
  }
  return made;
}

/// LongRoPE's factors of the pairs that rotate in a head of a small model.
void scale_factors(const DecoderConfig& whole, int64_t pairs, Table& ret_own) {
  for (const auto& [field, factors] :
       {std::pair("rope_short_factors", &whole.rope_short_factors),
        std::pair("rope_long_factors", &whole.rope_long_factors)}) {
    if (!factors->empty()) {
      ret_own.set(field, resized(*factors, pairs));
    }
  }
}

} // namespace

Table scaled(const DecoderConfig& whole, const ModelScale& to) {
  Table own;
  if (whole.window && to.uneven) {
    own.set("window", to.seq_length / 3);
  }
  if (!whole.kv_rank) {
    const int64_t head_dim = std::max<int64_t>(2, to.hidden / std::max<int64_t>(1, to.heads));
    scale_factors(whole, rotated_pairs(whole, head_dim), own);
    return own;
  }
  const int64_t width =
      to.uneven ? 18 : std::max<int64_t>(4, to.hidden / std::max<int64_t>(1, to.heads));
  own.set("v_head_dim", width);
  own.set("rope_head_dim", width / 4 * 2);
  scale_factors(whole, width / 4, own);
  const auto rank = [&](int64_t uneven, int64_t of_whole) {
    return to.uneven ? uneven : to.narrowed(of_whole, whole.hidden, /*step=*/4, /*least=*/2);
  };
  own.set("kv_rank", rank(36, *whole.kv_rank));
  if (whole.q_rank) {
    own.set("q_rank", rank(44, *whole.q_rank));
  }
  if (to.uneven) {
    own.set("kv_heads", Value()); // it has as many as heads
  } else {
    own.set("head_dim", width);
  }
  return own;
}

} // namespace mh

namespace mh::decoder_detail {

namespace {

std::string text(int64_t number) {
  return std::to_string(number);
}

int64_t head_dim(const DecoderConfig& c) {
  return c.head_dim.value_or(c.hidden / c.heads);
}

std::string heads(const DecoderConfig& c) {
  return !c.head_dim && c.hidden % c.heads != 0
             ? "hidden " + text(c.hidden) + " is not divisible by heads " + text(c.heads) +
                   ", and there is no head_dim"
             : "";
}

std::string kv_heads(const DecoderConfig& c) {
  return c.kv_heads && c.heads % *c.kv_heads != 0
             ? "heads " + text(c.heads) + " is not divisible by kv_heads " + text(*c.kv_heads)
             : "";
}

/// The first field that is set of those that latent attention does not have; "": none is.
std::string kv_rank(const DecoderConfig& c) {
  if (!c.kv_rank) {
    return "";
  }
  const auto first = c.kv_heads && *c.kv_heads != c.heads ? "kv_heads"
                     : c.qk_norm                          ? "qk_norm"
                     : c.qkv_bias.value_or(c.bias)        ? "qkv_bias"
                     : c.bias                             ? "bias"
                     : c.score_dim                        ? "score_dim"
                     : c.sinks                            ? "sinks"
                     : c.attention_gate                   ? "attention_gate"
                     : c.window_rope_base                 ? "window_rope_base"
                     : c.rope_share != 1                  ? "rope_share"
                     : c.rope_pairs != "halves"           ? "rope_pairs"
                     : !c.rope_pattern.empty()            ? "rope_pattern"
                                                          : "";
  if (*first != '\0') {
    return "latent attention has no " + std::string(first) + "; leave it out, or leave out kv_rank";
  }
  return c.positions != "rope" ? "latent attention rotates a part of its queries and keys, but "
                                 "positions = \"" +
                                     c.positions + "\"; set positions = \"rope\""
                               : "";
}

std::string only_latent(const DecoderConfig& c, bool set) {
  return set && !c.kv_rank ? "this is of latent attention; set kv_rank too" : "";
}

std::string q_rank(const DecoderConfig& c) {
  return only_latent(c, c.q_rank.has_value());
}

std::string rope_head_dim(const DecoderConfig& c) {
  return c.rope_head_dim && *c.rope_head_dim % 2 != 0
             ? "pairs are rotated, but " + text(*c.rope_head_dim) + " is odd"
             : only_latent(c, c.rope_head_dim.has_value());
}

std::string v_head_dim(const DecoderConfig& c) {
  const int64_t query = head_dim(c) + c.rope_head_dim.value_or(64);
  return c.kv_rank && c.v_head_dim.value_or(0) > query
             ? "values are wider than queries, which have head_dim + rope_head_dim = " + text(query)
             : only_latent(c, c.v_head_dim.has_value());
}

std::string parallel_residual(const DecoderConfig& c) {
  return c.parallel_residual && c.norm_placement == "post"
             ? "both parts are added to the block's input at once, but norm_placement = \"post\" has "
               "a norm after each sum; set it to pre or branch"
             : "";
}

std::string shared_norm(const DecoderConfig& c) {
  if (!c.shared_norm) {
    return "";
  }
  return !c.parallel_residual ? "the feed-forward reads what attention has added to, not the norm "
                                "that attention reads; set parallel_residual = true"
         : c.norm_placement != "pre"
             ? "both parts read one norm, but norm_placement = \"" + c.norm_placement +
                   "\" has a norm of what each part makes; set it to pre"
             : "";
}

std::string qk_norm_over(const DecoderConfig& c) {
  return c.qk_norm_over != "head" && !c.qk_norm ? "there is no query-key norm; set qk_norm = true"
                                                : "";
}

std::string kind_of_qk_norm(const DecoderConfig& c) {
  if (!c.qk_norm_kind) {
    return "";
  }
  const NormInfo& kind = info(norm_kind(*c.qk_norm_kind));
  return !c.qk_norm ? "there is no query-key norm; set qk_norm = true"
         : c.qk_norm_over == "own_head" && (kind.bias || kind.one_plus)
             ? "weights of each head are those of rmsnorm or layernorm_no_bias; set it to one of "
               "them, or qk_norm_over = \"head\""
             : "";
}

std::string positions(const DecoderConfig& c) {
  const bool bias = c.positions == "alibi" || c.positions == "alibi_scaled";
  return bias && c.score_cap
             ? "a bias by distance and bounded scores are not there together; leave "
               "score_cap out, or set positions = \"rope\""
             : "";
}

std::string rope_share(const DecoderConfig& c) {
  if (c.positions != "rope") {
    return c.rope_share != 1 ? "nothing is rotated with positions = \"" + c.positions +
                                   "\"; set positions = \"rope\""
                             : "";
  }
  const auto rotated = static_cast<double>(head_dim(c)) * c.rope_share;
  if (2 * std::llround(rotated / 2) > head_dim(c)) {
    return "pairs are rotated, but a head has " + text(head_dim(c)) +
           " elements, an odd number; choose an even head_dim";
  }
  return std::llround(rotated / 2) == 0
             ? "no pair of the " + text(head_dim(c)) + " elements of a head is rotated"
             : "";
}

std::string rope_pattern(const DecoderConfig& c) {
  const auto& layers = c.rope_pattern;
  return layers.empty()          ? ""
         : c.positions != "rope" ? "nothing is rotated with positions = \"" + c.positions +
                                       "\"; set positions = \"rope\""
         : std::find(layers.begin(), layers.end(), "rope") == layers.end()
             ? "no layer rotates; set positions = \"none\", and leave rope_pattern out"
             : "";
}

std::string rope_pairs(const DecoderConfig& c) {
  return c.rope_pairs != "halves" && c.positions != "rope"
             ? "nothing is rotated with positions = \"" + c.positions +
                   "\"; set positions = \"rope\""
             : "";
}

std::string rope_scaling(const DecoderConfig& c) {
  return c.rope_scaling != "none" && c.positions != "rope"
             ? "\"" + c.rope_scaling + "\" scales rotary positions, but positions = \"" +
                   c.positions + "\"; set positions = \"rope\""
             : "";
}

std::string rope_factor(const DecoderConfig& c) {
  return c.rope_scaling == "none" && c.rope_factor != 1
             ? "nothing is stretched with rope_scaling = \"none\"; set it to linear, llama3, yarn or "
               "longrope"
             : "";
}

std::string rope_high_freq(const DecoderConfig& c) {
  return c.rope_scaling == "llama3" && c.rope_high_freq <= c.rope_low_freq
             ? "rope_high_freq is not above rope_low_freq"
             : "";
}

std::string rope_beta_fast(const DecoderConfig& c) {
  return c.rope_scaling == "yarn" && c.rope_beta_fast <= c.rope_beta_slow
             ? "rope_beta_fast is not above rope_beta_slow"
             : "";
}

std::string rope_truncate(const DecoderConfig& c) {
  return !c.rope_truncate && c.rope_scaling != "yarn"
             ? "only yarn has bounds in pairs, but rope_scaling = \"" + c.rope_scaling + "\""
             : "";
}

std::string rope_attention(const DecoderConfig& c) {
  return c.rope_attention && c.rope_scaling != "yarn" && c.rope_scaling != "longrope"
             ? "only yarn and longrope scale queries and keys, but rope_scaling = \"" +
                   c.rope_scaling + "\""
             : "";
}

/// Either of LongRoPE's two lists.
std::string factors_of_pairs(const DecoderConfig& c, const std::vector<double>& factors) {
  if (c.rope_scaling != "longrope") {
    return factors.empty() ? ""
                           : "only longrope has a factor of each pair, but rope_scaling = \"" +
                                 c.rope_scaling + "\"";
  }
  const int64_t pairs = rotated_pairs(c, head_dim(c));
  return static_cast<int64_t>(factors.size()) == pairs
             ? ""
             : text(pairs) + " pairs of a head rotate, and there are " +
                   text(static_cast<int64_t>(factors.size())) + " factors; give one for each";
}

std::string rope_short_factors(const DecoderConfig& c) {
  return factors_of_pairs(c, c.rope_short_factors);
}

std::string rope_long_factors(const DecoderConfig& c) {
  return factors_of_pairs(c, c.rope_long_factors);
}

std::string rope_mscale_all_dim(const DecoderConfig& c) {
  return c.rope_mscale_all_dim && c.rope_scaling != "yarn"
             ? "only yarn scales scores, but rope_scaling = \"" + c.rope_scaling + "\""
             : only_latent(c, c.rope_mscale_all_dim.has_value());
}

std::string rope_mscale(const DecoderConfig& c) {
  if (!c.rope_mscale) {
    return "";
  }
  return !c.rope_mscale_all_dim ? "the factor is over that of rope_mscale_all_dim; set it too, or "
                                  "rope_attention to the factor itself"
         : c.rope_attention     ? "rope_attention is this factor already; give one of them"
                                : "";
}

std::string window(const DecoderConfig& c) {
  return c.window && !c.causal ? "a window looks back over earlier tokens, but causal = false" : "";
}

std::string window_pattern(const DecoderConfig& c) {
  return !c.window && !c.window_pattern.empty()
             ? "there is no window; set window to a number of tokens"
             : "";
}

std::string window_rope_base(const DecoderConfig& c) {
  return !c.window_rope_base     ? ""
         : !c.window             ? "no layer has a window; set window to a number of tokens"
         : c.positions != "rope" ? "nothing is rotated with positions = \"" + c.positions +
                                       "\"; set positions = \"rope\""
                                 : "";
}

std::string mtp_layers(const DecoderConfig& c) {
  return c.mtp_layers > 0 && !c.causal
             ? "with causal = false a token sees those that would be predicted; set causal = true, "
               "or leave mtp_layers out"
             : "";
}

constexpr FieldCondition<DecoderConfig> kConditions[] = {
    {"heads", heads},
    {"kv_heads", kv_heads},
    {"parallel_residual", parallel_residual},
    {"shared_norm", shared_norm},
    {"qk_norm_over", qk_norm_over},
    {"qk_norm_kind", kind_of_qk_norm},
    {"kv_rank", kv_rank},
    {"q_rank", q_rank},
    {"rope_head_dim", rope_head_dim},
    {"v_head_dim", v_head_dim},
    {"positions", positions},
    {"rope_share", rope_share},
    {"rope_pattern", rope_pattern},
    {"rope_pairs", rope_pairs},
    {"rope_scaling", rope_scaling},
    {"rope_factor", rope_factor},
    {"rope_high_freq", rope_high_freq},
    {"rope_beta_fast", rope_beta_fast},
    {"rope_truncate", rope_truncate},
    {"rope_attention", rope_attention},
    {"rope_short_factors", rope_short_factors},
    {"rope_long_factors", rope_long_factors},
    {"rope_mscale", rope_mscale},
    {"rope_mscale_all_dim", rope_mscale_all_dim},
    {"window", window},
    {"window_pattern", window_pattern},
    {"window_rope_base", window_rope_base},
    {"mtp_layers", mtp_layers},
};

} // namespace

std::vector<std::string> checked_fields() {
  return fields_of(kConditions);
}

std::vector<std::string> norm_names() {
  std::vector<std::string> names;
  for (const NormInfo& norm : kNorms) {
    names.emplace_back(norm.name);
  }
  return names;
}

std::vector<std::string> activation_names() {
  std::vector<std::string> names;
  for (const ActivationInfo& activation : activations()) {
    names.emplace_back(activation.name);
  }
  return names;
}

std::string qk_norm_kind(const DecoderConfig& c) {
  return c.qk_norm_kind.value_or(info(norm_kind(c.norm)).one_plus ? "rmsnorm_1p" : "rmsnorm");
}

int64_t vocab_of(const std::optional<int64_t>& given, const Architecture::Args& args) {
  if (!given && args.vocab <= 0) {
    throw Error(
        "model.vocab is absent and the tokenizer has no vocabulary of its own", "give model.vocab"
    );
  }
  return given.value_or(args.vocab);
}

int64_t default_ffn_hidden(int64_t hidden, const std::string& activation) {
  return is_gated(activation_kind(activation)) ? (8 * hidden + 3 * 64 - 1) / (3 * 64) * 64
                                               : 4 * hidden;
}

std::string contradiction(const std::string& field, const DecoderConfig& c) {
  return contradiction_at(kConditions, field, c);
}

} // namespace mh::decoder_detail
