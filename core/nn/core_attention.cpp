#include "core/nn/dropout_mask.hpp"
#include "megahost/error.hpp"
#include "megahost/nn/attention.hpp"
#include "megahost/nn/attention_kernel.hpp"
#include "megahost/nn/dropout.hpp"
#include "megahost/strategy.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/_scaled_dot_product_flash_attention.h>
#include <ATen/ops/scaled_dot_product_attention.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <tuple>
#include <vector>

namespace mh {

namespace {

double scale_of(const at::Tensor& q) {
  return 1.0 / std::sqrt(static_cast<double>(q.size(3)));
}

/// The tokens that this rank sees, in host memory.
std::vector<TokenRun> runs_of(const StepContext& context) {
  return context.rules().token_runs(context.seq(), context.mesh());
}

/// A mask in the form that the kernels take. `same`: the queries are the keys' tokens.
ops::KernelMask kernel_mask(const AttentionMask& mask, bool same, StepContext& context) {
  ops::KernelMask spec{.causal = mask.causal, .window = mask.window, .cap = mask.cap};
  const bool split = context.rules().attention != nullptr;
  if (split || (mask.causal && same && context.has_array("token_index"))) {
    spec.query_index = spec.key_index = context.token_index();
    spec.query_runs = spec.key_runs = runs_of(context);
  }
  spec.query_segments = spec.key_segments = context.segments();
  spec.query_documents = spec.key_documents = context.documents();
  return spec;
}

/// The mask over all keys of another sequence, `memory`. Indices tell dropout which pair is which.
ops::KernelMask memory_mask(std::string_view memory, StepContext& context) {
  ops::KernelMask spec{.causal = false};
  spec.query_index = context.token_index();
  spec.query_runs = runs_of(context);
  spec.query_segments = context.segments();
  spec.query_documents = context.documents();
  const auto keys = context.within(memory);
  spec.key_index = context.token_index();
  spec.key_runs = runs_of(context);
  spec.key_segments = context.segments();
  spec.key_documents = context.documents();
  if (!spec.query_segments || !spec.key_segments) {
    spec.query_segments = spec.key_segments = std::nullopt;
    spec.query_documents = spec.key_documents = {};
  }
  return spec;
}

/// The tensors that scores meet in addition to queries and keys; each may be undefined.
struct ScoreTensors {
  at::Tensor bias, sinks;
};

/// Adds the sinks, and a bias, whose middle column is of distance 0.
ops::KernelMask with_tensors(ops::KernelMask mask, const ScoreTensors& added) {
  if (added.bias.defined()) {
    mask.bias = added.bias;
    mask.first_distance = -(added.bias.size(1) / 2);
  }
  if (added.sinks.defined()) {
    mask.sinks = added.sinks;
  }
  return mask;
}

ops::KernelDropout
kernel_dropout(const AttentionDropout& dropout, at::Device device, StepContext& context) {
  ops::KernelDropout drop{.first_head = dropout.first_head};
  if (dropout.p > 0 && context.mode().training) {
    drop.p = dropout.p;
    drop.key = dropout_key(dropout.site, context);
    drop.samples = sample_numbers(context, device);
    const auto& samples = context.batch().samples;
    drop.first_sample = context.mode().checking || samples.empty() ? -1 : samples.front();
  }
  return drop;
}

/// LibTorch's kernels of a device, all [batch, heads, seq, dim]. In a plan they are called by name:
/// on the Meta device LibTorch would choose one that makes all scores.
at::Tensor device_attention(
    const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, bool causal, double scale
) {
  if (!q.is_meta()) {
    return at::scaled_dot_product_attention(
        q, k, v, {}, 0.0, causal, scale, /*enable_gqa=*/q.size(1) != k.size(1)
    );
  }
  return std::get<0>(at::_scaled_dot_product_flash_attention(
      q, k, v, 0.0, causal, /*return_debug_mask=*/false, scale
  ));
}

/// On a GPU LibTorch chooses the kernel of plain causal or full attention, cuDNN's on Hopper and
/// later; the operator does all else, and everything on the CPU.
at::Tensor fused_attention(
    const at::Tensor& q,
    const at::Tensor& k,
    const at::Tensor& v,
    const ops::KernelMask& mask,
    const AttentionDropout& dropout,
    StepContext& context,
    double scale
) {
  const auto queries = q.size(0), keys = k.size(0);
  const bool window = mask.window > 0 && mask.window < keys;
  const bool dropped = dropout.p > 0 && context.mode().training;
  if (context.mode().target == at::kCPU || mask.bias || mask.query_segments || window || dropped ||
      mask.cap > 0 || mask.sinks || (mask.causal && queries != keys)) {
    return ops::flash_attention(q, k, v, scale, mask, kernel_dropout(dropout, q.device(), context));
  }
  return device_attention(
             q.permute({1, 2, 0, 3}),
             k.permute({1, 2, 0, 3}),
             v.permute({1, 2, 0, 3}),
             mask.causal,
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
    const AttentionMask& mask,
    const at::Tensor& sinks,
    StepContext& context,
    double scale
) {
  const int64_t keys = k.size(0);
  const int64_t seen = mask.window > 0 ? std::min(mask.window, keys) : keys;
  const auto b = q.size(1), h = q.size(2), d = q.size(3), kv = k.size(2);
  const auto last = [&](const at::Tensor& x) { return x.narrow(0, keys - seen, seen); };
  ops::KernelMask all{.causal = false, .cap = mask.cap};
  if (sinks.defined()) {
    all.sinks = sinks.view({kv, h / kv});
  }
  return fused_attention(
             q.reshape({b, kv, h / kv, d}).permute({2, 0, 1, 3}),
             last(k),
             last(v),
             all,
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
    const ScoreTensors& added
) {
  const auto queries = q.size(0), keys = k.size(0);
  if (q.size(2) % k.size(2) != 0) {
    throw Error(
        "a rank has " + std::to_string(q.size(2)) + " query heads and " +
            std::to_string(k.size(2)) +
            " heads of keys and values, expected the first to be a multiple of the second",
        "a strategy that splits the axis heads splits kv_heads, too (megahost/axis.hpp)"
    );
  }
  MH_ASSERT(queries <= keys, "queries are the last of the keys' tokens");
  MH_ASSERT(mask.window == 0 || mask.causal, "windows look back");
  MH_ASSERT(
      queries == keys || !context.segments(),
      "documents are told apart among the tokens of one batch only"
  );
  const bool drops = dropout.p > 0 && context.mode().training;
  if (queries == 1 && keys > 1 && !drops && !added.bias.defined()) {
    return last_query(q, k, v, mask, added.sinks, context, scale);
  }
  const auto seen = with_tensors(kernel_mask(mask, queries == keys, context), added);
  return fused_attention(q, k, v, seen, dropout, context, scale);
}

/// Attention without a method of a strategy sees the tokens of its rank alone.
void require_whole_samples(const StepContext& context) {
  for (const Rule& rule : context.rules().tokens) {
    if (rule.logical == axis::seq && context.mesh().size(rule.mesh) > 1) {
      throw Error(
          "the ranks of " + std::string(to_string(rule.mesh)) +
              " hold different tokens of a sample, and no strategy has a method for attention over "
              "all of them",
          "a strategy that splits `seq` sets the rules' `attention` (megahost/placement.hpp)"
      );
    }
  }
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

/// The part "core_attention": `run` gets q, k, v and what else the scores meet.
template <class Run>
at::Tensor core_part(
    const at::Tensor& q,
    const at::Tensor& k,
    const at::Tensor& v,
    const ScoreTensors& added,
    StepContext& context,
    const Run& run
) {
  if (context.mode().tokens_apart) {
    return of_own_token(q, k, v);
  }
  std::vector<at::Tensor> inputs{q, k, v};
  for (const at::Tensor& one : {added.bias, added.sinks}) {
    if (one.defined()) {
      inputs.push_back(one);
    }
  }
  const bool bias = added.bias.defined(), sinks = added.sinks.defined();
  return context.part("core_attention", inputs, [run, bias, sinks](const auto& in) {
    return run(
        in[0],
        in[1],
        in[2],
        ScoreTensors{bias ? in[3] : at::Tensor(), sinks ? in.back() : at::Tensor()}
    );
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
    const at::Tensor& bias,
    const at::Tensor& sinks
) {
  const double scale = given_scale.value_or(scale_of(q));
  const auto run = [mask, dropout, scale, step = &context](
                       const auto& queries, const auto& keys, const auto& values, const auto& added
                   ) {
    const auto& method = step->rules().attention;
    if (method == nullptr) {
      require_whole_samples(*step);
      return self_attention(queries, keys, values, mask, dropout, *step, scale, added);
    }
    const auto seen = with_tensors(kernel_mask(mask, /*same=*/true, *step), added);
    const auto drop = kernel_dropout(dropout, queries.device(), *step);
    return method->attend(queries, keys, values, scale, seen, drop, *step);
  };
  return core_part(q, k, v, {bias, sinks}, context, run);
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
        require_whole_samples(*step);
        return fused_attention(queries, keys, values, seen, dropout, *step, scale);
      };
  return core_part(q, k, v, {}, context, run);
}

} // namespace mh
