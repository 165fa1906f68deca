#include "core/nn/dropout_mask.hpp"
#include "megahost/error.hpp"
#include "megahost/nn/attention.hpp"
#include "megahost/nn/attention_kernel.hpp"
#include "megahost/nn/dropout.hpp"
#include "megahost/strategy.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/_scaled_dot_product_efficient_attention.h>
#include <ATen/ops/_scaled_dot_product_flash_attention.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <tuple>

namespace mh {

namespace {

/// What is added to scores: -inf where a query may not look, [1 or batch, 1, queries, keys].
at::Tensor score_mask(
    const ops::AttentionMask& mask, int64_t queries, int64_t keys, const at::TensorOptions& options
) {
  const auto integers = options.dtype(at::kLong);
  const at::Tensor rows = mask.query_index.value_or(at::arange(keys - queries, keys, integers));
  const at::Tensor columns = mask.key_index.value_or(at::arange(keys, integers));
  const at::Tensor back = rows.unsqueeze(1) - columns; // how far back each key lies
  at::Tensor hidden = at::zeros(back.sizes(), options.dtype(at::kBool)).unsqueeze(0);
  if (mask.causal) {
    hidden = hidden.bitwise_or(back.lt(0));
  }
  if (mask.window > 0) {
    hidden = hidden.bitwise_or(back.ge(mask.window));
  }
  if (mask.query_segments) {
    hidden = hidden.bitwise_or(
        mask.query_segments->t().unsqueeze(2).ne(mask.key_segments->t().unsqueeze(1))
    );
  }
  return at::zeros(hidden.sizes(), options)
      .masked_fill(hidden, -std::numeric_limits<float>::infinity())
      .unsqueeze(1);
}

/// The same, made once per microbatch; `memory` is the sequence of the keys, or empty.
at::Tensor known_score_mask(
    const ops::AttentionMask& mask,
    std::string_view memory,
    int64_t queries,
    int64_t keys,
    const at::TensorOptions& options,
    StepContext& context
) {
  const std::string key = "attention mask " + std::string(memory) + " " +
                          std::to_string(mask.causal) + " " + std::to_string(mask.window) + " " +
                          std::to_string(queries) + " " + std::to_string(keys) + " " +
                          c10::toString(options.dtype());
  return context.cached(key, [&] {
    ops::AttentionMask seen = mask;
    if (!seen.query_index && queries == keys) {
      seen.query_index = seen.key_index = context.token_index();
    }
    return score_mask(seen, queries, keys, options);
  });
}

/// One call: what is seen, and of which sequence the keys are, if of another than the queries.
struct Seen {
  ops::AttentionMask mask;
  std::string_view memory{};
};

/// Scores are made in full: for dropout of the probabilities. All [batch, heads, seq, dim].
at::Tensor plain_attention(
    const at::Tensor& q,
    const at::Tensor& k,
    const at::Tensor& v,
    const Seen& seen,
    const AttentionDropout& dropout,
    StepContext& context,
    double scale
) {
  const auto type = q.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  at::Tensor scores = at::matmul(q, k.transpose(-2, -1)).to(type) * scale;
  if (seen.mask.causal || seen.mask.query_segments) {
    const auto queries = q.size(2), keys = k.size(2);
    scores =
        scores + known_score_mask(seen.mask, seen.memory, queries, keys, scores.options(), context);
  }
  // The scores become [queries, batch, heads * keys], so that the mask follows tokens, samples and
  // heads; before the soft max, whose backward pass would copy a gradient that lies in another
  // order.
  const auto b = scores.size(0), h = scores.size(1), s = scores.size(2), t = scores.size(3);
  const at::Tensor rows = scores.permute({2, 0, 1, 3}).contiguous().softmax(-1).view({s, b, h * t});
  const at::Tensor shares =
      dropout_at(
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
  spec.query_segments = spec.key_segments = context.segments();
  return spec;
}

/// The same of all keys of another sequence. Indices tell dropout which pair is which.
ops::AttentionMask memory_mask(std::string_view memory, StepContext& context) {
  ops::AttentionMask spec{.causal = false};
  spec.query_index = context.token_index();
  spec.query_segments = context.segments();
  const auto keys = context.within(memory);
  spec.key_index = context.token_index();
  spec.key_segments = context.segments();
  if (!spec.query_segments || !spec.key_segments) {
    spec.query_segments = spec.key_segments = std::nullopt;
  }
  return spec;
}

/// Adds a bias, whose middle column is of distance 0.
ops::AttentionMask with_bias(ops::AttentionMask mask, const at::Tensor& bias) {
  if (bias.defined()) {
    mask.bias = bias;
    mask.first_distance = -(bias.size(1) / 2);
  }
  return mask;
}

ops::AttentionDropout
kernel_dropout(const AttentionDropout& dropout, at::Device device, StepContext& context) {
  ops::AttentionDropout drop{.first_head = dropout.first_head};
  if (dropout.p > 0 && context.mode().training) {
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

/// A fused kernel; dropout and bias on the CPU only: elsewhere a bias makes all scores.
at::Tensor fused_attention(
    const at::Tensor& q,
    const at::Tensor& k,
    const at::Tensor& v,
    const Seen& seen,
    const AttentionDropout& dropout,
    StepContext& context,
    double scale
) {
  const auto queries = q.size(0), keys = k.size(0);
  const auto& mask = seen.mask;
  if (context.mode().target == at::kCPU || mask.bias) {
    return ops::flash_attention(q, k, v, scale, mask, kernel_dropout(dropout, q.device(), context));
  }
  const bool documents = mask.query_segments.has_value();
  const bool window = mask.window > 0 && mask.window < keys;
  const bool is_causal = mask.causal && queries == keys && !window && !documents;
  if (!is_causal && queries == keys && (window || documents)) {
    TORCH_WARN_ONCE(
        "attention on this device takes the kernel for masks instead of the flash kernel: that one "
        "knows neither windows nor documents"
    );
  }
  const auto added =
      is_causal || (!mask.causal && !documents)
          ? std::nullopt
          : std::optional<at::Tensor>(
                known_score_mask(mask, seen.memory, queries, keys, q.options(), context)
            );
  return device_attention(
             q.permute({1, 2, 0, 3}),
             k.permute({1, 2, 0, 3}),
             v.permute({1, 2, 0, 3}),
             added,
             is_causal,
             scale
  )
      .permute({2, 0, 1, 3});
}

/// Calls the device's kernel, with dropout or without.
at::Tensor attention_of(
    const at::Tensor& q,
    const at::Tensor& k,
    const at::Tensor& v,
    const Seen& seen,
    const AttentionDropout& dropout,
    StepContext& context,
    double scale
) {
  const bool drops = dropout.p > 0 && context.mode().training;
  if (!drops || context.mode().target == at::kCPU || seen.mask.bias) {
    return fused_attention(q, k, v, seen, dropout, context, scale);
  }
  TORCH_WARN_ONCE(
      "attention on this device makes all its scores: its fused kernels have no dropout that is "
      "the same under every layout; model.attention_dropout = 0 lets them run"
  );
  const auto heads = q.size(2);
  return plain_attention(
             q.permute({1, 2, 0, 3}),
             spread(k, heads),
             spread(v, heads),
             seen,
             dropout,
             context,
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
             {.mask = {.causal = false}},
             {},
             context,
             scale
  )
      .permute({1, 2, 0, 3})
      .reshape({1, b, h, d});
}

/// Attention among the tokens of one sequence, on one rank.
at::Tensor self_attention(
    const at::Tensor& q,
    const at::Tensor& k,
    const at::Tensor& v,
    const AttentionMask& mask,
    const AttentionDropout& dropout,
    StepContext& context,
    double scale,
    const at::Tensor& bias
) {
  const auto queries = q.size(0), keys = k.size(0);
  MH_ASSERT(q.size(2) % k.size(2) == 0, "query heads are a multiple of key and value heads");
  MH_ASSERT(queries <= keys, "queries are the last of the keys' tokens");
  MH_ASSERT(mask.window == 0 || mask.causal, "windows look back");
  MH_ASSERT(
      queries == keys || !context.segments(),
      "documents are told apart among the tokens of one batch only"
  );
  const bool drops = dropout.p > 0 && context.mode().training;
  if (queries == 1 && keys > 1 && !drops && !bias.defined()) {
    return last_query(q, k, v, mask.window, context, scale);
  }
  const auto seen = with_bias(kernel_mask(mask, queries == keys, context), bias);
  return attention_of(q, k, v, {.mask = seen}, dropout, context, scale);
}

/// Zeros in place of attention's result; NaN where a token's own query, key or value has one, so
/// that a trial of token mixing sees what mixed tokens before them.
at::Tensor of_own_token(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
  at::Tensor own = q.sum({2, 3}, /*keepdim=*/true);
  if (k.size(0) == q.size(0)) { // else they are another sequence's
    own = own + k.sum({2, 3}, /*keepdim=*/true) + v.sum({2, 3}, /*keepdim=*/true);
  }
  return (own * 0).expand({q.size(0), q.size(1), q.size(2), v.size(3)}).contiguous();
}

/// The part "core_attention": `run` gets q, k, v and the bias, if there is one.
template <class Run>
at::Tensor core_part(
    const at::Tensor& q,
    const at::Tensor& k,
    const at::Tensor& v,
    const at::Tensor& bias,
    StepContext& context,
    const Run& run
) {
  if (context.mode().tokens_apart) {
    return of_own_token(q, k, v);
  }
  std::vector<at::Tensor> inputs{q, k, v};
  if (bias.defined()) {
    inputs.push_back(bias);
  }
  return context.part("core_attention", inputs, [run](const auto& in) {
    return run(in[0], in[1], in[2], in.size() > 3 ? in[3] : at::Tensor());
  });
}

} // namespace

at::Tensor core_attention(
    const at::Tensor& q,
    const at::Tensor& k,
    const at::Tensor& v,
    const AttentionMask& mask,
    const AttentionDropout& dropout,
    StepContext& context,
    std::optional<double> scale
) {
  return self_attention(q, k, v, mask, dropout, context, scale.value_or(scale_of(q)), {});
}

at::Tensor attend(
    const at::Tensor& q,
    const at::Tensor& k,
    const at::Tensor& v,
    const AttentionMask& mask,
    const AttentionDropout& dropout,
    StepContext& context,
    std::optional<double> given_scale,
    const at::Tensor& bias
) {
  const double scale = given_scale.value_or(scale_of(q));
  const auto run = [mask, dropout, scale, step = &context](
                       const auto& queries, const auto& keys, const auto& values, const auto& added
                   ) {
    const auto& method = step->rules().attention;
    if (method == nullptr) {
      return self_attention(queries, keys, values, mask, dropout, *step, scale, added);
    }
    const auto seen = with_bias(kernel_mask(mask, /*same=*/true, *step), added);
    const auto drop = kernel_dropout(dropout, queries.device(), *step);
    return method->attend(queries, keys, values, scale, seen, drop, *step);
  };
  return core_part(q, k, v, bias, context, run);
}

at::Tensor cross_attend(
    const at::Tensor& q,
    const at::Tensor& k,
    const at::Tensor& v,
    std::string_view memory,
    const AttentionDropout& dropout,
    StepContext& context,
    std::optional<double> given_scale
) {
  const double scale = given_scale.value_or(scale_of(q));
  const auto run =
      [memory = std::string(memory),
       dropout,
       scale,
       step = &context](const auto& queries, const auto& keys, const auto& values, const auto&) {
        const auto seen = memory_mask(memory, *step);
        if (const auto& method = step->rules().attention) {
          const auto drop = kernel_dropout(dropout, queries.device(), *step);
          return method->attend(queries, keys, values, scale, seen, drop, *step);
        }
        return attention_of(queries, keys, values, {seen, memory}, dropout, *step, scale);
      };
  return core_part(q, k, v, {}, context, run);
}

} // namespace mh
