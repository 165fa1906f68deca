#include "megahost/nn/attention.hpp"

#include "core/nn/alibi.hpp"
#include "core/nn/head_norm.hpp"
#include "megahost/error.hpp"
#include "megahost/nn/attention_kernel.hpp"
#include "megahost/random.hpp"
#include "megahost/saved.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/record_function.h>

#include <algorithm>
#include <tuple>

namespace mh {

AttentionPart::~AttentionPart() = default;
CrossAttentionPart::~CrossAttentionPart() = default;

namespace {

Axis query_heads(const AttentionSpec& spec) {
  return {axis::heads, spec.heads, spec.head_dim};
}

Axis key_heads(const AttentionSpec& spec) {
  return {axis::kv_heads, spec.kv_heads, spec.head_dim};
}

/// Norm of queries or keys; null where the spec has none.
std::unique_ptr<NormPart> query_key_norm(
    Builder& builder, const AttentionSpec& spec, const char* name, Axis heads, const Placement& seen
) {
  if (!spec.qk_norm_eps) {
    return nullptr;
  }
  const auto names = builder.scope(name);
  const bool all_heads = spec.qk_norm_over == QueryKeyNorm::all_heads;
  const NormSpec norm{
      .kind = spec.qk_norm,
      .axis = all_heads ? heads : Axis{axis::head_dim, spec.head_dim},
      .eps = *spec.qk_norm_eps,
      .seen = seen};
  if (spec.qk_norm_over == QueryKeyNorm::own_head) {
    return std::make_unique<HeadNorm>(builder, Axis{heads.logical, heads.size}, norm);
  }
  return std::make_unique<Norm>(builder, norm);
}

/// x [seq, batch, heads, head_dim], each head normalised or all of them as one row.
at::Tensor
normed(const NormPart& norm, const AttentionSpec& spec, const at::Tensor& x, StepContext& context) {
  return spec.qk_norm_over == QueryKeyNorm::all_heads
             ? norm.forward(x.flatten(2), context).view(x.sizes())
             : norm.forward(x, context);
}

/// Queries, keys and values of the same tokens, and the gate of what is made of them.
LinearSpec input_spec(const AttentionSpec& spec) {
  LinearSpec in{
      .in = spec.embed,
      .outs =
          {{"q", query_heads(spec), spec.q_std}, {"k", key_heads(spec)}, {"v", key_heads(spec)}},
      .bias = spec.qkv_bias,
      .std = spec.std};
  if (spec.gate) {
    in.outs.push_back({"gate", query_heads(spec)});
  }
  return in;
}

LinearSpec output_spec(const AttentionSpec& spec) {
  return {
      .in = query_heads(spec),
      .outs = {{"out", spec.embed}},
      .bias = spec.bias,
      .std = spec.out_std};
}

AttentionDropout
dropout_of(const Builder& builder, const AttentionSpec& spec, const Parameter& queries) {
  return {
      .p = spec.dropout,
      .site = random_key(0, builder.global_name("probabilities")),
      .first_head = queries.pieces[0].offset[0] / spec.head_dim};
}

/// Null where the spec has none.
Parameter* sinks_of(Builder& builder, const AttentionSpec& spec) {
  const Axis heads{axis::heads, spec.heads};
  return spec.sinks ? &builder.parameter(
                          {{"sinks", {heads}, Init::normal(spec.std)}}, builder.place(heads)
                      )
                    : nullptr;
}

/// The sinks in the type of statistics; their gradient goes straight into the main gradient.
struct WideSinks : torch::autograd::Function<WideSinks> {
  struct Saved {
    Parameter* parameter;
  };

  static at::Tensor
  forward(torch::autograd::AutogradContext* ctx, const at::Tensor& value, Parameter* parameter) {
    save(ctx, Saved{parameter});
    const auto wide = value.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
    return value.to(wide, /*non_blocking=*/false, /*copy=*/true);
  }

  static torch::autograd::variable_list
  backward(torch::autograd::AutogradContext* ctx, const torch::autograd::variable_list& gradients) {
    get_saved<Saved>(ctx).parameter->add_gradient([&](const at::Tensor& sum) {
      sum.add_(gradients[0]);
    });
    return {at::Tensor(), at::Tensor()};
  }
};

/// 2 GEMMs of each pair of a query and a key.
double attention_flops(const AttentionSpec& spec, double pairs) {
  return 4.0 * static_cast<double>(spec.heads * spec.head_dim) * pairs;
}

/// The parts of a GEMM's result, each [seq, batch, heads, head_dim].
std::vector<at::Tensor> in_heads(const Linear& linear, const at::Tensor& y, int64_t head_dim) {
  auto parts = linear.parts(y);
  for (auto& part : parts) {
    part = part.unflatten(-1, {part.size(-1) / head_dim, head_dim});
  }
  return parts;
}

} // namespace

Attention::Attention(Builder& builder, const AttentionSpec& spec)
    : spec_(spec)
    , qkv_(builder, input_spec(spec))
    , out_(builder, output_spec(spec))
    , dropout_(dropout_of(builder, spec, qkv_.weight())) {
  const auto& mask = spec.mask;
  if (mask.window > 0 && !mask.causal) {
    throw Error("an attention window looks back, but the attention is not causal");
  }
  if (spec.alibi && (spec.relative_bias || mask.cap > 0)) {
    throw Error(
        std::string("attention with ALiBi has no ") +
            (spec.relative_bias ? "relative bias" : "bounded scores"),
        "leave one of them out"
    );
  }
  q_norm_ = query_key_norm(builder, spec, "q_norm", query_heads(spec), qkv_.plan().out);
  k_norm_ = query_key_norm(builder, spec, "k_norm", key_heads(spec), qkv_.plan().out);
  if (spec.relative_bias) {
    const auto names = builder.scope("relative_bias");
    relative_bias_ = std::make_unique<RelativeBias>(builder, spec.heads, *spec.relative_bias);
  }
  sinks_ = sinks_of(builder, spec);
  const auto seq = builder.seq();
  builder.flops.attention +=
      attention_flops(spec, ops::visible_pairs(seq, seq, mask.causal, mask.window));
}

at::Tensor Attention::forward(const at::Tensor& x, StepContext& context) const {
  RECORD_USER_SCOPE("attention");
  const at::Tensor packed = qkv_.forward(x, context);
  auto qkv = in_heads(qkv_, packed, spec_.head_dim);
  if (q_norm_ != nullptr) {
    qkv[0] = normed(*q_norm_, spec_, qkv[0], context);
    qkv[1] = normed(*k_norm_, spec_, qkv[1], context);
  }
  if (spec_.rotary) {
    const at::Tensor table = rotary_table(*spec_.rotary, context);
    if (q_norm_ == nullptr && !spec_.adjacent_pairs) {
      std::vector<int64_t> heads;
      for (const at::Tensor& part : qkv) {
        heads.push_back(part.size(2));
      }
      qkv = rotary(packed.unflatten(-1, {-1, spec_.head_dim}), heads, 2, table);
    } else {
      const auto rotated = [&](const at::Tensor& y) {
        return rotary(spec_.adjacent_pairs ? adjacent_to_halves(y, spec_.rotary->dim) : y, table);
      };
      qkv[0] = rotated(qkv[0]);
      qkv[1] = rotated(qkv[1]);
    }
  }
  if (context.mode().kv_cache != nullptr && spec_.mask.causal) {
    std::tie(qkv[1], qkv[2]) = context.mode().kv_cache->append(dropout_.site, qkv[1], qkv[2]);
  }
  at::Tensor bias;
  const int64_t length = std::max(context.seq(), qkv[1].size(0));
  if (relative_bias_ != nullptr) {
    bias = relative_bias_->forward(length, context);
  } else if (spec_.alibi) {
    const AlibiHeads heads{spec_.heads, dropout_.first_head, qkv[0].size(2), *spec_.alibi};
    bias = alibi_bias(heads, length, qkv[0].options(), context);
  }
  const at::Tensor sinks =
      sinks_ == nullptr ? at::Tensor() : WideSinks::apply(sinks_->value, sinks_);
  at::Tensor mixed =
      attend(qkv[0], qkv[1], qkv[2], spec_.mask, dropout_, context, spec_.scale, bias, sinks);
  if (spec_.gate) {
    mixed = mixed * at::sigmoid(qkv[3]);
  }
  return out_.forward(mixed.reshape({mixed.size(0), mixed.size(1), -1}), context);
}

namespace {

/// Keys and values, of the memory's tokens.
Linear memory_linear(Builder& builder, const AttentionSpec& spec, std::string_view memory) {
  const auto tokens = builder.within(memory);
  return Linear(
      builder,
      {.in = spec.embed,
       .outs = {{"k", key_heads(spec)}, {"v", key_heads(spec)}},
       .bias = spec.qkv_bias,
       .std = spec.std}
  );
}

} // namespace

CrossAttention::CrossAttention(Builder& builder, const AttentionSpec& spec, std::string_view memory)
    : spec_(spec)
    , memory_(memory)
    , q_(builder,
         {.in = spec.embed,
          .outs = {{"q", query_heads(spec), spec.q_std}},
          .bias = spec.qkv_bias,
          .std = spec.std})
    , kv_(memory_linear(builder, spec, memory))
    , out_(builder, output_spec(spec))
    , dropout_(dropout_of(builder, spec, q_.weight())) {
  if (spec.mask.causal || spec.mask.window > 0 || spec.rotary || spec.relative_bias || spec.alibi) {
    throw Error(
        "cross attention has a causal mask, a window, rotary embedding, a relative bias or ALiBi, "
        "but tokens of two sequences have no order",
        "give it mask {.causal = false}, and neither rotary, relative_bias nor alibi"
    );
  }
  if (spec.sinks || spec.gate) {
    throw Error(
        std::string("cross attention has no ") + (spec.sinks ? "sinks" : "gate"), "leave it out"
    );
  }
  q_norm_ = query_key_norm(builder, spec, "q_norm", query_heads(spec), q_.plan().out);
  k_norm_ = query_key_norm(builder, spec, "k_norm", key_heads(spec), kv_.plan().out);
  const auto queries = static_cast<double>(builder.seq());
  const auto tokens = builder.within(memory);
  builder.flops.attention += attention_flops(spec, queries * static_cast<double>(builder.seq()));
}

std::vector<at::Tensor>
CrossAttention::of_memory(const at::Tensor& memory, StepContext& context) const {
  const auto tokens = context.within(memory_);
  auto kv = in_heads(kv_, kv_.forward(memory, context), spec_.head_dim);
  if (k_norm_ != nullptr) {
    kv[0] = normed(*k_norm_, spec_, kv[0], context);
  }
  return kv;
}

at::Tensor
CrossAttention::forward(const at::Tensor& x, const at::Tensor& memory, StepContext& context) const {
  RECORD_USER_SCOPE("cross attention");
  at::Tensor q = in_heads(q_, q_.forward(x, context), spec_.head_dim).front();
  const auto make = [&] { return of_memory(memory, context); };
  KeyValueCache* cache = context.mode().kv_cache;
  const auto kv = cache == nullptr ? make() : cache->once(dropout_.site, make);
  if (q_norm_ != nullptr) {
    q = normed(*q_norm_, spec_, q, context);
  }
  const at::Tensor mixed = cross_attend(q, kv[0], kv[1], memory_, dropout_, context, spec_.scale);
  return out_.forward(mixed.reshape({mixed.size(0), mixed.size(1), -1}), context);
}

} // namespace mh
