#include "core/nn/flash_attention.hpp"

#include <torch/csrc/autograd/custom_function.h>

namespace mh {

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
      double scale,
      bool causal,
      int64_t window,
      const OptionalTensor& query_index,
      const OptionalTensor& key_index,
      const OptionalTensor& query_segments,
      const OptionalTensor& key_segments,
      double dropout,
      int64_t dropout_key,
      const OptionalTensor& samples,
      int64_t first_head
  ) {
    const auto [out, lse] = ops::attention(
        q,
        k,
        v,
        scale,
        {causal, window, query_index, key_index, query_segments, key_segments},
        {dropout, dropout_key, samples, first_head}
    );
    ctx->save_for_backward(
        {q,
         k,
         v,
         out,
         lse,
         query_index.value_or(at::Tensor()),
         key_index.value_or(at::Tensor()),
         query_segments.value_or(at::Tensor()),
         key_segments.value_or(at::Tensor()),
         samples.value_or(at::Tensor())}
    );
    ctx->saved_data["scale"] = scale;
    ctx->saved_data["causal"] = causal;
    ctx->saved_data["window"] = window;
    ctx->saved_data["dropout"] = dropout;
    ctx->saved_data["dropout_key"] = dropout_key;
    ctx->saved_data["first_head"] = first_head;
    return out;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    const auto saved = ctx->get_saved_variables();
    const auto [dq, dk, dv] = ops::attention_backward(
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
         .key_segments = optional(saved[8])},
        {.p = ctx->saved_data["dropout"].toDouble(),
         .key = ctx->saved_data["dropout_key"].toInt(),
         .samples = optional(saved[9]),
         .first_head = ctx->saved_data["first_head"].toInt()}
    );
    variable_list result(14);
    result[0] = dq;
    result[1] = dk;
    result[2] = dv;
    return result;
  }
};

} // namespace

at::Tensor flash_attention(
    const at::Tensor& q,
    const at::Tensor& k,
    const at::Tensor& v,
    double scale,
    const ops::AttentionMask& mask,
    const ops::AttentionDropout& dropout
) {
  return FlashAttention::apply(
      q,
      k,
      v,
      scale,
      mask.causal,
      mask.window,
      mask.query_index,
      mask.key_index,
      mask.query_segments,
      mask.key_segments,
      dropout.p,
      dropout.key,
      dropout.samples,
      dropout.first_head
  );
}

} // namespace mh
