#include "megahost/nn/attention_kernel.hpp"
#include "megahost/saved.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/logaddexp.h>

namespace mh::ops {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using OptionalTensor = std::optional<at::Tensor>;

OptionalTensor optional(const at::Tensor& x) {
  return x.defined() ? OptionalTensor(x) : std::nullopt;
}

/// Sinks [heads] or [heads, queries] as a log-sum-exp [batch, heads, queries] meets them.
at::Tensor sink_scores(const at::Tensor& sinks, const at::Tensor& lse) {
  const at::Tensor scores = sinks.to(lse.scalar_type());
  return scores.dim() == 1 ? scores.unsqueeze(-1) : scores;
}

struct FlashAttention : torch::autograd::Function<FlashAttention> {
  struct Saved {
    double scale;
    bool causal;
    int64_t window, first_distance;
    double cap;
    std::optional<double> pairs;
    double p; // probability of dropout, whose other numbers follow
    int64_t key, first_head, first_key, all_keys, first_sample;
    std::vector<TokenRun> query_runs, key_runs;
    std::vector<DocumentStart> query_documents, key_documents;
  };

  static at::Tensor forward(
      AutogradContext* ctx,
      const at::Tensor& q,
      const at::Tensor& k,
      const at::Tensor& v,
      const OptionalTensor& bias,  // the mask's
      const OptionalTensor& sinks, // which `mask` is without
      double scale,
      const KernelMask& mask,
      const KernelDropout& dropout
  ) {
    auto [out, lse] = ops::attention(q, k, v, scale, mask, dropout);
    if (sinks) {
      lse = join_sinks_(out, lse, *sinks);
    }
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
         bias.value_or(at::Tensor()),
         sinks.value_or(at::Tensor())}
    );
    save(
        ctx,
        Saved{
            scale,
            mask.causal,
            mask.window,
            mask.first_distance,
            mask.cap,
            mask.pairs,
            dropout.p,
            dropout.key,
            dropout.first_head,
            dropout.first_key,
            dropout.all_keys,
            dropout.first_sample,
            mask.query_runs,
            mask.key_runs,
            mask.query_documents,
            mask.key_documents}
    );
    return out;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    const auto saved = ctx->get_saved_variables();
    const auto& own = get_saved<Saved>(ctx);
    const auto [dq, dk, dv, dbias] = ops::attention_backward(
        gradients[0],
        saved[0],
        saved[1],
        saved[2],
        saved[3],
        saved[4],
        own.scale,
        {.causal = own.causal,
         .window = own.window,
         .query_index = optional(saved[5]),
         .key_index = optional(saved[6]),
         .query_segments = optional(saved[7]),
         .key_segments = optional(saved[8]),
         .pairs = own.pairs,
         .bias = optional(saved[10]),
         .first_distance = own.first_distance,
         .cap = own.cap,
         .query_runs = own.query_runs,
         .key_runs = own.key_runs,
         .query_documents = own.query_documents,
         .key_documents = own.key_documents},
        {.p = own.p,
         .key = own.key,
         .samples = optional(saved[9]),
         .first_head = own.first_head,
         .first_key = own.first_key,
         .all_keys = own.all_keys,
         .first_sample = own.first_sample}
    );
    const at::Tensor& sinks = saved[11];
    return {
        dq,
        dk,
        dv,
        saved[10].defined() ? dbias : at::Tensor(),
        sinks.defined() ? sinks_backward(gradients[0], saved[3], saved[4], sinks) : at::Tensor(),
        {},
        {},
        {}};
  }
};

} // namespace

at::Tensor join_sinks_(at::Tensor out, const at::Tensor& lse, const at::Tensor& sinks) {
  at::Tensor whole = at::logaddexp(lse, sink_scores(sinks, lse)).contiguous();
  const at::Tensor share = (lse - whole).exp(); // [batch, heads, queries]
  out.mul_(share.permute({2, 0, 1}).unsqueeze(-1));
  return whole;
}

// The sink's share p of a row has the score's gradient p (0 - delta), delta = dout · out, as its
// value is 0.
at::Tensor sinks_backward(
    const at::Tensor& dout, const at::Tensor& out, const at::Tensor& lse, const at::Tensor& sinks
) {
  const at::Tensor delta = (dout.to(lse.scalar_type()) * out).sum(-1); // [queries, batch, heads]
  const at::Tensor share = (sink_scores(sinks, lse) - lse).exp();
  const at::Tensor rows = (share * delta.permute({1, 2, 0})).neg().sum(0); // [heads, queries]
  return (sinks.dim() == 1 ? rows.sum(-1) : rows).to(sinks.scalar_type());
}

at::Tensor flash_attention(
    const at::Tensor& q,
    const at::Tensor& k,
    const at::Tensor& v,
    double scale,
    const KernelMask& mask,
    const KernelDropout& dropout
) {
  KernelMask of_keys = mask;
  of_keys.sinks.reset();
  return FlashAttention::apply(q, k, v, mask.bias, mask.sinks, scale, of_keys, dropout);
}

} // namespace mh::ops
