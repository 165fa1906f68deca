#include "megahost/nn/attention.hpp"

#include "core/nn/flash_attention.hpp"
#include "megahost/error.hpp"
#include "megahost/nn/dropout.hpp"
#include "megahost/random.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/zeros.h>

#include <cmath>
#include <limits>

namespace mh {

namespace {

/// Which keys a query may not see, as -inf to add to scores; undefined if only causality counts.
at::Tensor document_mask(bool causal, StepContext& context) {
  if (!context.has_array("segments")) {
    return {};
  }
  return context.cached(causal ? "causal document mask" : "document mask", [&] {
    const at::Tensor segments = context.array("segments").t(); // [batch, seq]
    at::Tensor hidden = segments.unsqueeze(2).ne(segments.unsqueeze(1));
    if (causal) {
      const at::Tensor index = context.token_index();
      hidden = hidden.bitwise_or(index.unsqueeze(1).lt(index.unsqueeze(0)));
    }
    return at::zeros(hidden.sizes(), hidden.options().dtype(at::kFloat))
        .masked_fill(hidden, -std::numeric_limits<float>::infinity())
        .unsqueeze(1);
  });
}

/// Scores are made in full: for dropout of the probabilities.
at::Tensor plain_attention(
    const at::Tensor& q,
    const at::Tensor& k,
    const at::Tensor& v,
    bool causal,
    double p,
    uint64_t site,
    int64_t first_head,
    StepContext& context
) {
  const auto type = q.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const double scale = 1.0 / std::sqrt(static_cast<double>(q.size(-1)));
  at::Tensor scores = at::matmul(q, k.transpose(-2, -1)).to(type) * scale;
  at::Tensor mask = document_mask(causal, context);
  if (!mask.defined() && causal) {
    const at::Tensor index = context.token_index();
    mask =
        at::zeros({index.size(0), index.size(0)}, index.options().dtype(at::kFloat))
            .masked_fill(
                index.unsqueeze(1).lt(index.unsqueeze(0)), -std::numeric_limits<float>::infinity()
            );
  }
  if (mask.defined()) {
    scores = scores + mask;
  }
  at::Tensor shares = scores.softmax(-1); // [batch, heads, queries, keys]
  if (p > 0 && context.training) {
    // As [queries, batch, heads * keys], so that the mask follows tokens, samples and heads.
    const auto b = shares.size(0), h = shares.size(1), s = shares.size(2), t = shares.size(3);
    const at::Tensor rows = shares.permute({2, 0, 1, 3}).reshape({s, b, h * t});
    shares = dropout_at(rows, p, site, first_head * t, context.token_index(), context)
                 .view({s, b, h, t})
                 .permute({1, 2, 0, 3});
  }
  return at::matmul(shares.to(v.scalar_type()), v);
}

/// [seq, batch, kv_heads, dim] -> [batch, heads, seq, dim], each kv head repeated for its queries.
at::Tensor spread(const at::Tensor& x, int64_t heads) {
  const auto s = x.size(0), b = x.size(1), kv = x.size(2), d = x.size(3);
  if (kv == heads) {
    return x.permute({1, 2, 0, 3});
  }
  return x.unsqueeze(3)
      .expand({s, b, kv, heads / kv, d})
      .reshape({s, b, heads, d})
      .permute({1, 2, 0, 3});
}

} // namespace

at::Tensor core_attention(
    const at::Tensor& q,
    const at::Tensor& k,
    const at::Tensor& v,
    bool causal,
    double p,
    uint64_t site,
    int64_t first_head,
    StepContext& context
) {
  const int64_t heads = q.size(2);
  MH_ASSERT(heads % k.size(2) == 0, "query heads are a multiple of key and value heads");
  if (p > 0 && context.training) {
    return plain_attention(
               q.permute({1, 2, 0, 3}),
               spread(k, heads),
               spread(v, heads),
               causal,
               p,
               site,
               first_head,
               context
    )
        .permute({2, 0, 1, 3});
  }
  if (context.target == at::kCPU) {
    ops::AttentionMask mask{.causal = causal};
    if (context.has_array("token_index")) {
      mask.query_index = mask.key_index = context.array("token_index");
    }
    if (context.has_array("segments")) {
      mask.query_segments = mask.key_segments = context.array("segments");
    }
    return flash_attention(q, k, v, 1.0 / std::sqrt(static_cast<double>(q.size(3))), mask);
  }
  const at::Tensor mask = document_mask(causal, context);
  const bool is_causal = causal && !mask.defined();
  const auto bias =
      mask.defined() ? std::optional<at::Tensor>(mask.to(q.scalar_type())) : std::nullopt;
  return at::scaled_dot_product_attention(
             q.permute({1, 2, 0, 3}),
             k.permute({1, 2, 0, 3}),
             v.permute({1, 2, 0, 3}),
             bias,
             0.0,
             is_causal,
             std::nullopt,
             /*enable_gqa=*/heads != k.size(2)
  )
      .permute({2, 0, 1, 3});
}

Attention::Attention(Builder& builder, const AttentionSpec& spec)
    : spec_(spec)
    , qkv_(
          builder,
          {.in = spec.embed,
           .outs =
               {{"q", {axis::heads, spec.heads, spec.head_dim}},
                {"k", {axis::kv_heads, spec.kv_heads, spec.head_dim}},
                {"v", {axis::kv_heads, spec.kv_heads, spec.head_dim}}},
           .bias = spec.qkv_bias,
           .std = spec.std}
      )
    , out_(
          builder,
          {.in = {axis::heads, spec.heads, spec.head_dim},
           .outs = {{"out", spec.embed}},
           .bias = spec.bias,
           .std = spec.out_std}
      )
    , site_(random_key(0, builder.global_name("probabilities")))
    , first_head_(qkv_.weight().pieces[0].offset[0] / spec.head_dim) {
  builder.flops.attention_per_token += 4.0 * static_cast<double>(spec.heads * spec.head_dim);
}

at::Tensor Attention::forward(const at::Tensor& x, StepContext& context) const {
  auto qkv = qkv_.parts(qkv_.forward(x, context));
  for (auto& part : qkv) {
    part = part.unflatten(-1, {part.size(-1) / spec_.head_dim, spec_.head_dim});
  }
  if (spec_.rotary) {
    const at::Tensor table = rotary_table(*spec_.rotary, context);
    qkv[0] = rotary(qkv[0], table);
    qkv[1] = rotary(qkv[1], table);
  }
  StepContext* step = &context;
  const at::Tensor mixed = context.part("core_attention", qkv, [this, step](const auto& in) {
    return core_attention(
        in[0], in[1], in[2], spec_.causal, spec_.dropout, site_, first_head_, *step
    );
  });
  return out_.forward(mixed.reshape({mixed.size(0), mixed.size(1), -1}), context);
}

} // namespace mh
