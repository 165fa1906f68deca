// Which fields of a decoder contradict each other.

#include "megahost/nn/decoder.hpp"

#include <cmath>
#include <string_view>

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

std::string rope_share(const DecoderConfig& c) {
  if (c.positions != "rope") {
    return c.rope_share != 1 ? "nothing is rotated with positions = \"" + c.positions +
                                   "\"; set positions = \"rope\""
                             : "";
  }
  const auto rotated = static_cast<double>(head_dim(c)) * c.rope_share;
  return std::llround(rotated / 2) == 0
             ? "no pair of the " + text(head_dim(c)) + " elements of a head is rotated"
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
             ? "nothing is stretched with rope_scaling = \"none\"; set it to linear, llama3 or yarn"
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

std::string rope_attention(const DecoderConfig& c) {
  return c.rope_attention && c.rope_scaling != "yarn"
             ? "only yarn scales queries and keys, but rope_scaling = \"" + c.rope_scaling + "\""
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

struct Condition {
  std::string_view field;
  std::string (*check)(const DecoderConfig& c);
};

constexpr Condition kConditions[] = {
    {"heads", heads},
    {"kv_heads", kv_heads},
    {"rope_share", rope_share},
    {"rope_scaling", rope_scaling},
    {"rope_factor", rope_factor},
    {"rope_high_freq", rope_high_freq},
    {"rope_beta_fast", rope_beta_fast},
    {"rope_attention", rope_attention},
    {"window", window},
    {"window_pattern", window_pattern},
};

} // namespace

std::vector<std::string> checked_fields() {
  std::vector<std::string> fields;
  for (const Condition& condition : kConditions) {
    fields.emplace_back(condition.field);
  }
  return fields;
}

std::string contradiction(const std::string& field, const DecoderConfig& c) {
  for (const Condition& condition : kConditions) {
    if (condition.field == field) {
      return condition.check(c);
    }
  }
  return "";
}

} // namespace mh::decoder_detail
