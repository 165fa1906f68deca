#include "megahost/nn/attention_kernel.hpp"
#include "megahost/saved.hpp"

namespace mh::ops {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using OptionalTensor = std::optional<at::Tensor>;

OptionalTensor optional(const at::Tensor& x) {
  return x.defined() ? OptionalTensor(x) : std::nullopt;
}

AttentionMask without_tensors(AttentionMask mask) {
  mask.query_index.reset();
  mask.key_index.reset();
  mask.query_segments.reset();
  mask.key_segments.reset();
  mask.bias.reset();
  return mask;
}

AttentionDropout without_tensors(AttentionDropout dropout) {
  dropout.samples.reset();
  return dropout;
}

struct FlashAttention : torch::autograd::Function<FlashAttention> {
  struct Saved {
    double scale;
    AttentionMask mask; // their tensors are saved as such
    AttentionDropout dropout;
  };

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
    save(ctx, Saved{scale, without_tensors(mask), without_tensors(dropout)});
    return out;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    const auto saved = ctx->get_saved_variables();
    auto [scale, mask, dropout] = get_saved<Saved>(ctx);
    mask.query_index = optional(saved[5]);
    mask.key_index = optional(saved[6]);
    mask.query_segments = optional(saved[7]);
    mask.key_segments = optional(saved[8]);
    dropout.samples = optional(saved[9]);
    mask.bias = optional(saved[10]);
    const auto [dq, dk, dv, dbias] = ops::attention_backward(
        gradients[0], saved[0], saved[1], saved[2], saved[3], saved[4], scale, mask, dropout
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
