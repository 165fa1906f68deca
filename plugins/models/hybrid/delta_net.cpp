#include "delta_net.hpp"

#include "chunks.hpp"
#include "decays.hpp"
#include "delta_cpu.hpp"
#include "delta_rule.hpp"
#include "documents.hpp"

#include <megahost/saved.hpp>

#include <ATen/TensorOperators.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/silu_backward.h>
#include <ATen/ops/softplus.h>
#include <ATen/record_function.h>

namespace mh::hybrid {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// Elements of all value heads; by one each: a number of a head.
Axis value_axis(const DeltaSpec& spec, int64_t width) {
  return {axis::heads, spec.heads, width};
}

Axis key_axis(const DeltaSpec& spec) {
  return {axis::kv_heads, spec.key_heads, spec.key_dim};
}

/// y silu(z), which saves no more than y and z.
struct OutputGate : torch::autograd::Function<OutputGate> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& y, const at::Tensor& z) {
    ctx->save_for_backward({y, z});
    return at::silu(z).mul_(y);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    const auto saved = ctx->get_saved_variables();
    const at::Tensor &y = saved[0], &z = saved[1];
    return {at::silu(z).mul_(gradients[0]), at::silu_backward(gradients[0] * y, z)};
  }
};

} // namespace

DeltaNet::DeltaNet(Builder& builder, const DeltaSpec& spec)
    : spec_(spec)
    , in_(builder,
          {.in = spec.embed,
           .outs =
               {{"z", value_axis(spec, spec.dim)},
                {"v", value_axis(spec, spec.dim)},
                {"q", key_axis(spec)},
                {"k", key_axis(spec)},
                {"beta", value_axis(spec, 1)},
                {"dt", value_axis(spec, 1)}},
           .bias = spec.bias,
           .std = spec.std})
    , convolution_(builder.below(
          "convolution",
          [&] {
            return Convolution(
                builder,
                {{"v", value_axis(spec, spec.dim)}, {"q", key_axis(spec)}, {"k", key_axis(spec)}},
                spec.taps,
                /*bias=*/false
            );
          }
      ))
    , dt_bias_(of_heads(builder, "dt_bias", spec.heads, initial_steps()))
    , a_log_(of_heads(builder, "a_log", spec.heads, initial_decays()))
    , all_(value_axis(spec, spec.dim))
    , states_(
          builder,
          "state",
          {value_axis(spec, 1), {{"key"}, spec.key_dim}, {axis::head_dim, spec.dim}}
      )
    , norm_(builder.below(
          "norm",
          [&] {
            return Norm(
                builder,
                {.kind = NormKind::rmsnorm,
                 .axis = {axis::head_dim, spec.dim},
                 .eps = spec.norm_eps,
                 .seen = builder.place(value_axis(spec, spec.dim))}
            );
          }
      ))
    , out_(
          builder,
          {.in = value_axis(spec, spec.dim),
           .outs = {{"out", spec.embed}},
           .bias = spec.bias,
           .std = spec.out_std}
      ) {
  // The products of each token with the state: what is there at its key, what it writes, and what
  // its query reads. Chunks add GEMMs of their own, which depend on their size.
  builder.flops.attention += 6.0 * static_cast<double>(spec.heads * spec.key_dim * spec.dim) *
                             static_cast<double>(builder.seq());
}

at::Tensor DeltaNet::forward(const at::Tensor& x, StepContext& context) const {
  RECORD_USER_SCOPE("delta_net");
  const at::Tensor packed = in_.forward(x, context); // [S, B, z v q k beta dt]
  const auto parts = in_.parts(packed);
  const int64_t inner = parts[0].size(-1), heads = parts[5].size(-1);
  const auto of =
      packed.split_with_sizes({inner, packed.size(-1) - inner - 2 * heads, heads, heads}, -1);
  const at::Tensor documents = documents_begun(all_, context);
  const at::Tensor vqk = convolution_.forward(of[1], documents, context);
  const at::Tensor y = recur(vqk, of[2], of[3], documents, context); // [S, B, H, D]
  const at::Tensor normed = norm_.forward(y.to(x.scalar_type()), context);
  return out_.forward(OutputGate::apply(normed.flatten(2), of[0]), context);
}

at::Tensor DeltaNet::recur(
    const at::Tensor& vqk,
    const at::Tensor& beta,
    const at::Tensor& dt,
    const at::Tensor& documents,
    StepContext& context
) const {
  const auto wide = vqk.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const int64_t inner = dt.size(-1) * spec_.dim, keys = (vqk.size(-1) - inner) / 2;
  const auto of = vqk.split_with_sizes({inner, keys, keys}, -1);
  const at::Tensor steps = at::softplus(dt.to(wide) + dt_bias_->value.to(wide)); // [S, B, H]
  const auto runs = own_runs(vqk, context);
  const DeltaInputs in{
      .q = of[1].unflatten(-1, {-1, spec_.key_dim}), // [S, B, K, D of keys]
      .k = of[2].unflatten(-1, {-1, spec_.key_dim}),
      .v = of[0].unflatten(-1, {-1, spec_.dim}), // [S, B, H, D]
      .beta = at::sigmoid(beta.to(wide)),
      .log_decay = steps * a_log_->value.to(wide).exp().neg(),
      .starts = starts_of(documents, runs),
      .target = context.mode().target};
  if (context.mode().tokens_apart) {
    return delta_alone(in);
  }
  const auto rows = chunk_rows(runs, spec_.chunk);
  const bool whole = context.mode().kv_cache == nullptr && dt.size(0) == context.seq();
  if (whole && fits_cpu_delta(in)) {
    return cpu_delta_rule(in, rows);
  }
  const DeltaChunks chunks = delta_chunks(in, rows);
  const at::Tensor states =
      states_.before_with_matrices(chunks.transitions, chunks.updates, context);
  return delta_outputs(chunks, states, rows);
}

} // namespace mh::hybrid
