#include "megahost/nn/latent_attention.hpp"

#include "megahost/checking.hpp"
#include "megahost/error.hpp"
#include "megahost/nn/attention_kernel.hpp"
#include "megahost/random.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/record_function.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <tuple>
#include <vector>

namespace mh {

namespace {

constexpr LogicalAxis kQueryLatent{"q_latent"};
constexpr LogicalAxis kLatent{"kv_latent"};

LinearSpec down_spec(const LatentAttentionSpec& spec) {
  LinearSpec down{.in = spec.embed, .outs = {}, .std = spec.std};
  if (spec.q_rank) {
    down.outs.push_back({"q_down", {kQueryLatent, *spec.q_rank}});
  }
  down.outs.push_back({"kv_down", {kLatent, spec.kv_rank}});
  down.outs.push_back({"k_rope", {axis::head_dim, spec.rotary.dim}});
  return down;
}

std::unique_ptr<Norm> latent_norm(Builder& builder, const char* name, Axis axis, double eps) {
  const auto names = builder.scope(name);
  return std::make_unique<Norm>(
      builder,
      NormSpec{.kind = NormKind::rmsnorm, .axis = axis, .eps = eps, .seen = builder.place(axis)}
  );
}

at::Tensor in_heads(const at::Tensor& x, int64_t width) {
  return x.unflatten(-1, {x.size(-1) / width, width});
}

} // namespace

LatentAttention::LatentAttention(Builder& builder, const LatentAttentionSpec& spec)
    : spec_(spec)
    , name_(builder.global_name("k_rope"))
    , down_(builder, down_spec(spec))
    , q_norm_(
          spec.q_rank ? latent_norm(builder, "q_norm", {kQueryLatent, *spec.q_rank}, spec.norm_eps)
                      : nullptr
      )
    , kv_norm_(latent_norm(builder, "kv_norm", {kLatent, spec.kv_rank}, spec.norm_eps))
    , q_up_(
          builder,
          {.in = spec.q_rank ? Axis{kQueryLatent, *spec.q_rank} : spec.embed,
           .outs =
               {{spec.q_rank ? "q_up" : "q",
                 {axis::heads, spec.heads, spec.head_dim + spec.rotary.dim}}},
           .std = spec.std}
      )
    , kv_up_(
          builder,
          {.in = {kLatent, spec.kv_rank},
           .outs = {{"kv_up", {axis::heads, spec.heads, spec.head_dim + spec.value_dim}}},
           .std = spec.std}
      )
    , out_(
          builder,
          {.in = {axis::heads, spec.heads, spec.value_dim},
           .outs = {{"out", spec.embed}},
           .std = spec.out_std}
      )
    , dropout_{
          .p = spec.dropout,
          .site = random_key(0, builder.global_name("probabilities")),
          .first_head = kv_up_.weight().pieces[0].offset[0] / (spec.head_dim + spec.value_dim)} {
  const int64_t wide = spec.head_dim + spec.rotary.dim;
  if (spec.value_dim > wide) {
    throw Error(
        "values of " + std::to_string(spec.value_dim) + " elements are wider than queries of " +
        std::to_string(wide)
    );
  }
  builder.flops.attention +=
      2.0 * static_cast<double>(spec.heads * (wide + spec.value_dim)) *
      ops::visible_pairs(builder.seq(), builder.seq(), spec.mask.causal, spec.mask.window);
}

at::Tensor LatentAttention::queries(
    const at::Tensor& x, const at::Tensor& latent, const at::Tensor& table, StepContext& context
) const {
  const at::Tensor q = in_heads(
      q_up_.forward(q_norm_ == nullptr ? x : q_norm_->forward(latent, context), context),
      spec_.head_dim + spec_.rotary.dim
  );
  const auto parts = q.split_with_sizes({spec_.head_dim, spec_.rotary.dim}, -1);
  return at::cat({parts[0], rotary(adjacent_to_halves(parts[1], spec_.rotary.dim), table)}, -1);
}

at::Tensor LatentAttention::forward(const at::Tensor& x, StepContext& context) const {
  RECORD_USER_SCOPE("attention");
  const auto latents = down_.parts(down_.forward(x, context));
  const at::Tensor table = rotary_table(spec_.rotary, context);
  at::Tensor q = queries(x, latents.front(), table, context);
  const at::Tensor latent = kv_norm_->forward(latents[latents.size() - 2], context);
  const auto kv = in_heads(kv_up_.forward(latent, context), spec_.head_dim + spec_.value_dim)
                      .split_with_sizes({spec_.head_dim, spec_.value_dim}, -1);
  // Each rank's heads see the shared key, of all tokens, and have a part of its gradient.
  const auto& placed = down_.plan().out;
  const at::Tensor own = checked(latents.back(), placed, name_, "output", context);
  const at::Tensor key = convert(own.contiguous(), placed, kv_up_.plan().need, context.mesh());
  const at::Tensor shared = rotary(adjacent_to_halves(key, spec_.rotary.dim).unsqueeze(2), table);
  auto sizes = kv[0].sizes().vec();
  sizes.back() = spec_.rotary.dim;
  at::Tensor k = at::cat({kv[0], shared.expand(sizes)}, -1);
  // Kernels want values as wide as queries.
  at::Tensor v = at::constant_pad_nd(kv[1], {0, k.size(3) - spec_.value_dim});
  if (context.mode().kv_cache != nullptr && spec_.mask.causal) {
    std::tie(k, v) = context.mode().kv_cache->append(dropout_.site, k, v);
  }
  const double scale = spec_.score_scale / std::sqrt(static_cast<double>(q.size(3)));
  const at::Tensor mixed = attend(q, k, v, spec_.mask, dropout_, context, scale);
  return out_.forward(mixed.narrow(3, 0, spec_.value_dim).flatten(2), context);
}

} // namespace mh
