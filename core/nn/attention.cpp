#include "megahost/nn/attention.hpp"

#include "core/nn/dropout_mask.hpp"
#include "megahost/error.hpp"
#include "megahost/nn/attention_kernel.hpp"
#include "megahost/nn/dropout.hpp"
#include "megahost/random.hpp"
#include "megahost/strategy.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/_scaled_dot_product_efficient_attention.h>
#include <ATen/ops/_scaled_dot_product_flash_attention.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/zeros.h>
#include <ATen/record_function.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <tuple>

namespace mh {

namespace {

/// What is added to scores: -inf where a query may not look, [1 or batch, 1, queries, keys].
at::Tensor score_bias(
    const AttentionMask& mask,
    int64_t queries,
    int64_t keys,
    const at::TensorOptions& options,
    StepContext& context
) {
  const std::string key = "attention bias " + std::to_string(mask.causal) + " " +
                          std::to_string(mask.window) + " " + std::to_string(queries) + " " +
                          std::to_string(keys) + " " + c10::toString(options.dtype());
  return context.cached(key, [&] {
    const auto integers = options.dtype(at::kLong);
    const bool same = queries == keys;
    const at::Tensor rows =
        same ? context.token_index() : at::arange(keys - queries, keys, integers);
    const at::Tensor columns = same ? rows : at::arange(keys, integers);
    const at::Tensor back = rows.unsqueeze(1) - columns; // how far back each key lies
    at::Tensor hidden = at::zeros(back.sizes(), options.dtype(at::kBool)).unsqueeze(0);
    if (mask.causal) {
      hidden = hidden.bitwise_or(back.lt(0));
    }
    if (mask.window > 0) {
      hidden = hidden.bitwise_or(back.ge(mask.window));
    }
    if (context.has_array("segments")) {
      const at::Tensor segments = context.array("segments").t(); // [batch, seq]
      hidden = hidden.bitwise_or(segments.unsqueeze(2).ne(segments.unsqueeze(1)));
    }
    return at::zeros(hidden.sizes(), options)
        .masked_fill(hidden, -std::numeric_limits<float>::infinity())
        .unsqueeze(1);
  });
}

/// Scores are made in full: for dropout of the probabilities. All [batch, heads, seq, dim].
at::Tensor plain_attention(
    const at::Tensor& q,
    const at::Tensor& k,
    const at::Tensor& v,
    const AttentionMask& mask,
    const AttentionDropout& dropout,
    StepContext& context,
    double scale
) {
  const auto type = q.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  at::Tensor scores = at::matmul(q, k.transpose(-2, -1)).to(type) * scale;
  if (mask.causal || context.has_array("segments")) {
    scores = scores + score_bias(mask, q.size(2), k.size(2), scores.options(), context);
  }
  at::Tensor shares = scores.softmax(-1); // [batch, heads, queries, keys]
  // As [queries, batch, heads * keys], so that the mask follows tokens, samples and heads.
  const auto b = shares.size(0), h = shares.size(1), s = shares.size(2), t = shares.size(3);
  const at::Tensor rows = shares.permute({2, 0, 1, 3}).reshape({s, b, h * t});
  shares = dropout_at(
               rows, dropout.p, dropout.site, dropout.first_head * t, context.token_index(), context
  )
               .view({s, b, h, t})
               .permute({1, 2, 0, 3});
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

double scale_of(const at::Tensor& q) {
  return 1.0 / std::sqrt(static_cast<double>(q.size(3)));
}

/// What the kernels take of a mask. `same`: the queries are the keys' tokens.
ops::AttentionMask kernel_mask(const AttentionMask& mask, bool same, StepContext& context) {
  ops::AttentionMask spec{.causal = mask.causal, .window = mask.window};
  const bool split = context.rules().attention != nullptr;
  if (split || (mask.causal && same && context.has_array("token_index"))) {
    spec.query_index = spec.key_index = context.token_index();
  }
  if (context.has_array("segments")) {
    spec.query_segments = spec.key_segments = context.array("segments");
  }
  return spec;
}

ops::AttentionDropout
kernel_dropout(const AttentionDropout& dropout, at::Device device, StepContext& context) {
  ops::AttentionDropout drop{.first_head = dropout.first_head};
  if (dropout.p > 0 && context.training) {
    drop.p = dropout.p;
    drop.key = dropout_key(dropout.site, context);
    drop.samples = sample_numbers(context, device);
  }
  return drop;
}

/// LibTorch's kernels of a device, all [batch, heads, seq, dim]. In a plan they are called by name:
/// on the Meta device LibTorch would choose one that makes all scores.
at::Tensor device_attention(
    const at::Tensor& q,
    const at::Tensor& k,
    const at::Tensor& v,
    const std::optional<at::Tensor>& bias,
    bool causal,
    double scale
) {
  if (!q.is_meta()) {
    return at::scaled_dot_product_attention(
        q, k, v, bias, 0.0, causal, scale, /*enable_gqa=*/q.size(1) != k.size(1)
    );
  }
  return bias ? std::get<0>(at::_scaled_dot_product_efficient_attention(
                    q, k, v, bias, /*compute_log_sumexp=*/true, 0.0, causal, scale
                ))
              : std::get<0>(at::_scaled_dot_product_flash_attention(
                    q, k, v, 0.0, causal, /*return_debug_mask=*/false, scale
                ));
}

/// A fused kernel; dropout on the CPU only.
at::Tensor fused_attention(
    const at::Tensor& q,
    const at::Tensor& k,
    const at::Tensor& v,
    const AttentionMask& mask,
    const AttentionDropout& dropout,
    StepContext& context,
    double scale
) {
  const auto queries = q.size(0), keys = k.size(0);
  if (context.target == at::kCPU) {
    return ops::flash_attention(
        q,
        k,
        v,
        scale,
        kernel_mask(mask, queries == keys, context),
        kernel_dropout(dropout, q.device(), context)
    );
  }
  const bool documents = context.has_array("segments");
  const bool window = mask.window > 0 && mask.window < keys;
  const bool is_causal = mask.causal && queries == keys && !window && !documents;
  if (!is_causal && queries == keys && (window || documents)) {
    TORCH_WARN_ONCE(
        "attention on this device takes the kernel for masks instead of the flash kernel: that one "
        "knows neither windows nor documents"
    );
  }
  const auto bias =
      is_causal || (!mask.causal && !documents)
          ? std::nullopt
          : std::optional<at::Tensor>(score_bias(mask, queries, keys, q.options(), context));
  return device_attention(
             q.permute({1, 2, 0, 3}),
             k.permute({1, 2, 0, 3}),
             v.permute({1, 2, 0, 3}),
             bias,
             is_causal,
             scale
  )
      .permute({2, 0, 1, 3});
}

/// One query, the last token, sees all keys of its window: the query heads that share a key head
/// are so many queries of it.
at::Tensor last_query(
    const at::Tensor& q,
    const at::Tensor& k,
    const at::Tensor& v,
    int64_t window,
    StepContext& context,
    double scale
) {
  const int64_t keys = k.size(0);
  const int64_t seen = window > 0 ? std::min(window, keys) : keys;
  const auto b = q.size(1), h = q.size(2), d = q.size(3), kv = k.size(2);
  const auto last = [&](const at::Tensor& x) { return x.narrow(0, keys - seen, seen); };
  return fused_attention(
             q.reshape({b, kv, h / kv, d}).permute({2, 0, 1, 3}),
             last(k),
             last(v),
             {.causal = false},
             {},
             context,
             scale
  )
      .permute({1, 2, 0, 3})
      .reshape({1, b, h, d});
}

} // namespace

at::Tensor core_attention(
    const at::Tensor& q,
    const at::Tensor& k,
    const at::Tensor& v,
    const AttentionMask& mask,
    const AttentionDropout& dropout,
    StepContext& context,
    std::optional<double> given_scale
) {
  const auto queries = q.size(0), keys = k.size(0), heads = q.size(2);
  const double scale = given_scale.value_or(scale_of(q));
  MH_ASSERT(heads % k.size(2) == 0, "query heads are a multiple of key and value heads");
  MH_ASSERT(queries <= keys, "queries are the last of the keys' tokens");
  MH_ASSERT(mask.window == 0 || mask.causal, "windows look back");
  MH_ASSERT(
      queries == keys || !context.has_array("segments"),
      "documents are told apart among the tokens of one batch only"
  );
  const bool drops = dropout.p > 0 && context.training;
  if (drops && context.target != at::kCPU) {
    TORCH_WARN_ONCE(
        "attention on this device makes all its scores: its fused kernels have no dropout that is "
        "the same under every layout; model.attention_dropout = 0 lets them run"
    );
    return plain_attention(
               q.permute({1, 2, 0, 3}),
               spread(k, heads),
               spread(v, heads),
               mask,
               dropout,
               context,
               scale
    )
        .permute({2, 0, 1, 3});
  }
  if (queries == 1 && keys > 1 && !drops) {
    return last_query(q, k, v, mask.window, context, scale);
  }
  return fused_attention(q, k, v, mask, dropout, context, scale);
}

at::Tensor attend(
    const at::Tensor& q,
    const at::Tensor& k,
    const at::Tensor& v,
    const AttentionMask& mask,
    const AttentionDropout& dropout,
    StepContext& context,
    std::optional<double> scale
) {
  const auto run = [mask, dropout, scale, step = &context](const auto& in) {
    if (const auto& method = step->rules().attention) {
      return method->attend(
          in[0],
          in[1],
          in[2],
          scale.value_or(scale_of(in[0])),
          kernel_mask(mask, /*same=*/true, *step),
          kernel_dropout(dropout, in[0].device(), *step),
          *step
      );
    }
    return core_attention(in[0], in[1], in[2], mask, dropout, *step, scale);
  };
  return context.part("core_attention", {q, k, v}, run);
}

AttentionPart::~AttentionPart() = default;

std::pair<at::Tensor, at::Tensor>
KeyValueCache::append(uint64_t layer, const at::Tensor& k, const at::Tensor& v) {
  const int64_t tokens = k.size(0);
  Entry& entry = entries_[layer];
  MH_ASSERT(entry.length + tokens <= capacity_, "more tokens than the cache has room for");
  const auto add = [&](at::Tensor& all, const at::Tensor& part) {
    if (!all.defined()) {
      all = at::empty({capacity_, part.size(1), part.size(2), part.size(3)}, part.options());
    }
    all.narrow(0, entry.length, tokens).copy_(part);
    return all.narrow(0, 0, entry.length + tokens);
  };
  const auto both = std::pair(add(entry.k, k), add(entry.v, v));
  entry.length += tokens;
  return both;
}

at::Tensor KeyValueCache::rows(uint64_t layer, const at::Tensor& x, int64_t count) {
  at::Tensor& kept = rows_[layer];
  if (!kept.defined()) {
    auto sizes = x.sizes().vec();
    sizes[0] = count;
    kept = at::zeros(sizes, x.options());
  }
  const at::Tensor all = at::cat({kept, x});
  kept = all.narrow(0, x.size(0), count).clone();
  return all;
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
    , dropout_{
          .p = spec.dropout,
          .site = random_key(0, builder.global_name("probabilities")),
          .first_head = qkv_.weight().pieces[0].offset[0] / spec.head_dim} {
  const auto& mask = spec.mask;
  if (mask.window > 0 && !mask.causal) {
    throw Error("an attention window looks back, but the attention is not causal");
  }
  if (spec.qk_norm_eps) {
    const auto norm = [&](const char* name) {
      const auto names = builder.scope(name);
      return std::make_unique<Norm>(
          builder,
          NormSpec{
              .kind = NormKind::rmsnorm,
              .axis = {axis::head_dim, spec.head_dim},
              .eps = *spec.qk_norm_eps,
              .seen = qkv_.plan().out}
      );
    };
    q_norm_ = norm("q_norm");
    k_norm_ = norm("k_norm");
  }
  const auto seq = builder.seq();
  builder.flops.attention += 4.0 * static_cast<double>(spec.heads * spec.head_dim) *
                             ops::visible_pairs(seq, seq, mask.causal, mask.window);
}

at::Tensor Attention::forward(const at::Tensor& x, StepContext& context) const {
  RECORD_USER_SCOPE("attention");
  auto qkv = qkv_.parts(qkv_.forward(x, context));
  for (auto& part : qkv) {
    part = part.unflatten(-1, {part.size(-1) / spec_.head_dim, spec_.head_dim});
  }
  if (q_norm_ != nullptr) {
    qkv[0] = q_norm_->forward(qkv[0], context);
    qkv[1] = k_norm_->forward(qkv[1], context);
  }
  if (spec_.rotary) {
    const at::Tensor table = rotary_table(*spec_.rotary, context);
    qkv[0] = rotary(qkv[0], table);
    qkv[1] = rotary(qkv[1], table);
  }
  if (context.kv_cache != nullptr && spec_.mask.causal) {
    std::tie(qkv[1], qkv[2]) = context.kv_cache->append(dropout_.site, qkv[1], qkv[2]);
  }
  const at::Tensor mixed = attend(qkv[0], qkv[1], qkv[2], spec_.mask, dropout_, context);
  return out_.forward(mixed.reshape({mixed.size(0), mixed.size(1), -1}), context);
}

} // namespace mh
