#include "mamba.hpp"

#include "decays.hpp"
#include "documents.hpp"
#include "scan.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/softplus.h>
#include <ATen/record_function.h>

namespace mh::hybrid {

namespace {

/// Elements of all heads; by one each: a number of a head.
Axis heads_of(const MambaSpec& spec, int64_t width) {
  return {axis::heads, spec.heads, width};
}

/// The axis that the heads of a group share.
Axis groups_of(const MambaSpec& spec) {
  return {axis::kv_heads, spec.groups, spec.state};
}

} // namespace

Mamba::Mamba(Builder& builder, const MambaSpec& spec)
    : spec_(spec)
    , in_(builder,
          {.in = spec.embed,
           .outs =
               {{"z", heads_of(spec, spec.head_dim)},
                {"x", heads_of(spec, spec.head_dim)},
                {"b", groups_of(spec)},
                {"c", groups_of(spec)},
                {"dt", heads_of(spec, 1)}},
           .bias = spec.bias,
           .std = spec.std})
    , convolution_(builder.below(
          "convolution",
          [&] {
            return Convolution(
                builder,
                {{"x", heads_of(spec, spec.head_dim)},
                 {"b", groups_of(spec)},
                 {"c", groups_of(spec)}},
                spec.taps,
                spec.conv_bias
            );
          }
      ))
    , dt_bias_(of_heads(builder, "dt_bias", spec.heads, initial_steps()))
    , a_log_(of_heads(builder, "a_log", spec.heads, initial_decays()))
    , d_(of_heads(builder, "d", spec.heads, Init::ones()))
    , all_(heads_of(spec, spec.head_dim))
    , states_(
          builder,
          "state",
          {heads_of(spec, 1), {axis::head_dim, spec.head_dim}, {{"state"}, spec.state}}
      )
    , norm_(builder.below(
          "norm",
          [&] {
            return GatedNorm(builder, heads_of(spec, spec.head_dim), spec.groups, spec.norm_eps);
          }
      ))
    , out_(
          builder,
          {.in = heads_of(spec, spec.head_dim),
           .outs = {{"out", spec.embed}},
           .bias = spec.bias,
           .std = spec.out_std}
      ) {
  // The GEMMs of each token, into the states and out of them. Megatron-LM counts 7 FLOPs for each
  // element of a state, decays and sums among them; here only GEMMs count, as in other layers.
  // Chunks add GEMMs of their own, which depend on their size.
  builder.flops.attention += 4.0 * static_cast<double>(spec.heads * spec.head_dim * spec.state) *
                             static_cast<double>(builder.seq());
}

at::Tensor Mamba::forward(const at::Tensor& x, StepContext& context) const {
  RECORD_USER_SCOPE("mamba");
  const at::Tensor packed = in_.forward(x, context); // [S, B, z x b c dt]
  const auto parts = in_.parts(packed);
  const int64_t inner = parts[0].size(-1), heads = parts[4].size(-1);
  const auto of = packed.split_with_sizes({inner, packed.size(-1) - inner - heads, heads}, -1);
  const at::Tensor documents = documents_begun(all_, context);
  const at::Tensor xbc = convolution_.forward(of[1], documents, context);
  const int64_t rest = (xbc.size(-1) - inner) / 2;
  const auto mixed = xbc.split_with_sizes({inner, rest, rest}, -1);
  const auto wide = x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  at::Tensor dt = at::softplus(of[2].to(wide) + dt_bias_->value.to(wide)); // [S, B, H]
  dt = spec_.least_step > 0 ? dt.clamp_min(spec_.least_step) : dt;
  const auto runs = own_runs(xbc, context);
  const ScanInputs in{
      .x = mixed[0].unflatten(-1, {-1, spec_.head_dim}), // [S, B, H, P]
      .dt = dt,
      .log_decay = dt * a_log_->value.to(wide).exp().neg(),
      .b = mixed[1].unflatten(-1, {-1, spec_.state}), // [S, B, G, N]
      .c = mixed[2].unflatten(-1, {-1, spec_.state}),
      .starts = starts_of(documents, runs),
      .target = context.mode().target};
  const auto chunks = chunk_rows(runs, context.mode().tokens_apart ? 1 : spec_.chunk);
  const auto [decays, updates] = chunk_updates(in, chunks);
  const at::Tensor y = chunk_outputs(in, states_.before(decays, updates, context), chunks);
  return out_.forward(norm_.forward(y, in.x, d_->value, of[0], in.target), context);
}

} // namespace mh::hybrid
