#include "megahost/nn/attention_kernel.hpp"

#include <torch/csrc/autograd/custom_function.h>

namespace mh::ops {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using OptionalTensor = std::optional<at::Tensor>;

OptionalTensor optional(const at::Tensor& x) {
  return x.defined() ? OptionalTensor(x) : std::nullopt;
}

struct FlashAttention : torch::autograd::Function<FlashAttention> {
  static at::Tensor forward(
      AutogradContext* ctx,
      const at::Tensor& q,
      const at::Tensor& k,
      const at::Tensor& v,
      const OptionalTensor& bias, // the mask's
      double scale,
      const AttentionMask& mask,
      const AttentionDropout& dropout
  ) {
    const auto [out, lse] = ops::attention(q, k, v, scale, mask, dropout);
    ctx->save_for_backward(
        {q,
         k,
         v,
         out,
         lse,
         mask.query_index.value_or(at::Tensor()),
         mask.key_index.value_or(at::Tensor()),
         mask.query_segments.value_or(at::Tensor()),
         mask.key_segments.value_or(at::Tensor()),
         dropout.samples.value_or(at::Tensor()),
         bias.value_or(at::Tensor())}
    );
    ctx->saved_data["scale"] = scale;
    ctx->saved_data["causal"] = mask.causal;
    ctx->saved_data["window"] = mask.window;
    ctx->saved_data["pairs"] = mask.pairs;
    ctx->saved_data["first_distance"] = mask.first_distance;
    ctx->saved_data["dropout"] = dropout.p;
    ctx->saved_data["dropout_key"] = dropout.key;
    ctx->saved_data["first_head"] = dropout.first_head;
    ctx->saved_data["first_key"] = dropout.first_key;
    ctx->saved_data["all_keys"] = dropout.all_keys;
    return out;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    const auto saved = ctx->get_saved_variables();
    const auto [dq, dk, dv, dbias] = ops::attention_backward(
        gradients[0],
        saved[0],
        saved[1],
        saved[2],
        saved[3],
        saved[4],
        ctx->saved_data["scale"].toDouble(),
        {.causal = ctx->saved_data["causal"].toBool(),
         .window = ctx->saved_data["window"].toInt(),
         .query_index = optional(saved[5]),
         .key_index = optional(saved[6]),
         .query_segments = optional(saved[7]),
         .key_segments = optional(saved[8]),
         .pairs = ctx->saved_data["pairs"].toOptional<double>(),
         .bias = optional(saved[10]),
         .first_distance = ctx->saved_data["first_distance"].toInt()},
        {.p = ctx->saved_data["dropout"].toDouble(),
         .key = ctx->saved_data["dropout_key"].toInt(),
         .samples = optional(saved[9]),
         .first_head = ctx->saved_data["first_head"].toInt(),
         .first_key = ctx->saved_data["first_key"].toInt(),
         .all_keys = ctx->saved_data["all_keys"].toInt()}
    );
    return {dq, dk, dv, saved[10].defined() ? dbias : at::Tensor(), {}, {}, {}};
  }
};

} // namespace

at::Tensor flash_attention(
    const at::Tensor& q,
    const at::Tensor& k,
    const at::Tensor& v,
    double scale,
    const AttentionMask& mask,
    const AttentionDropout& dropout
) {
  return FlashAttention::apply(q, k, v, mask.bias, scale, mask, dropout);
}

} // namespace mh::ops
