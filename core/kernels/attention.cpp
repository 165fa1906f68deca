#include "core/attention/attention_gpu.hpp"
#include "core/attention/mask.hpp"
#include "core/kernels/attention_plain.hpp"
#include "core/kernels/level.hpp"
#include "core/kernels/planned_gpu.hpp"
#include "core/kernels/registration.hpp"
#include "core/kernels/workspace.hpp"
#include "core/memory/workspaces.hpp"
#include "megahost/error.hpp"
#include "megahost/nn/attention_kernel.hpp"
#include "megahost/parallel.hpp"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

namespace mh::ops {

namespace {

using at::Tensor;
using kernels::AttentionCall;
using kernels::AttentionKernels;
using OptionalTensor = std::optional<Tensor>;
using Pair = std::tuple<Tensor, Tensor>;
using AttentionGradients =
    std::tuple<Tensor, Tensor, Tensor, Tensor>; // gradients of q, k, v and the bias

void check(const Tensor& q, const Tensor& k, const Tensor& v, const KernelMask& mask) {
  TORCH_CHECK(
      !mask.bias || (mask.bias->dim() == 2 && mask.bias->size(0) == q.size(2)),
      "a bias of attention scores is [heads, distances]; got ",
      mask.bias->sizes()
  );
  TORCH_CHECK(
      mask.cap == 0 || (mask.cap > 0 && !mask.bias),
      "a cap of attention scores is above 0, and there is no bias with it; got ",
      mask.cap
  );
  TORCH_CHECK(
      q.dim() == 4 && k.dim() == 4 && v.sizes() == k.sizes() && q.size(1) == k.size(1) &&
          q.size(3) == k.size(3) && k.size(2) > 0 && q.size(2) % k.size(2) == 0,
      "attention needs q [queries, batch, heads, dim] and k, v [keys, batch, kv_heads, dim] with "
      "heads a multiple of kv_heads; got ",
      q.sizes(),
      ", ",
      k.sizes(),
      ", ",
      v.sizes()
  );
}

/// Sinks join the result of all keys; a call may see some of them.
void check_no_sinks(const KernelMask& mask) {
  TORCH_CHECK(
      !mask.sinks,
      "attention of some keys has no sinks: flash_attention reads them, and join_sinks_ lets them "
      "join the merged result of all keys"
  );
}

bool has_kernel(const Tensor& q) {
  const auto type = q.scalar_type();
  return (type == at::kFloat || type == at::kBFloat16) && q.size(3) % 2 == 0 && q.numel() > 0;
}

kernels::Strided strided(const Tensor& x) {
  MH_ASSERT(x.stride(3) == 1, "the elements of a head lie side by side");
  return {x.data_ptr(), x.stride(0), x.stride(1), x.stride(2)};
}

Tensor whole_heads(const Tensor& x) {
  return x.stride(3) == 1 ? x : x.contiguous();
}

const AttentionKernels& kernels_for(const Tensor& q) {
  const auto& table = kernels::table();
  if (q.scalar_type() == at::kFloat) {
    return table.attention_fp32;
  }
  return kernels::multiplies_bf16() ? table.attention_bf16 : table.attention_mixed;
}

AttentionCall call_of(
    const Tensor& q,
    const Tensor& k,
    const Tensor& v,
    const Tensor& out,
    const Tensor& lse,
    double scale,
    double cap
) {
  return {
      .queries = q.size(0),
      .keys = k.size(0),
      .batch = q.size(1),
      .heads = q.size(2),
      .kv_heads = k.size(2),
      .dim = q.size(3),
      .scale = static_cast<float>(scale),
      .q = strided(q),
      .k = strided(k),
      .v = strided(v),
      .out = strided(out),
      .lse = lse.mutable_data_ptr<float>(),
      .mask = {},
      .dropout = {},
      .cap = static_cast<float>(cap),
      .dout = {},
      .dq = {},
      .dk = {},
      .dv = {}};
}

/// The mask of a call; keeps what it was made from while it is made.
kernels::Mask mask_of(const Tensor& q, const Tensor& k, const KernelMask& mask) {
  std::vector<Tensor> kept;
  const auto data = [&](const OptionalTensor& x) -> const int64_t* {
    if (!x) {
      return nullptr;
    }
    kept.push_back(x->contiguous());
    return kept.back().const_data_ptr<int64_t>();
  };
  return kernels::Mask(
      {.queries = q.size(0),
       .keys = k.size(0),
       .batch = q.size(1),
       .causal = mask.causal,
       .window = mask.window,
       .query_index = data(mask.query_index),
       .key_index = data(mask.key_index),
       .query_segments = data(mask.query_segments),
       .key_segments = data(mask.key_segments)}
  );
}

/// The dropout of a call. Numbers of samples stay where they are.
kernels::ScoreDropout dropout_of(const KernelDropout& dropout, int64_t keys) {
  if (dropout.p == 0) {
    return {};
  }
  MH_ASSERT(
      dropout.samples && dropout.samples->is_contiguous(), "dropout needs the samples' numbers"
  );
  return {
      .keep_scale = static_cast<float>(1 / (1 - dropout.p)),
      .threshold = static_cast<uint32_t>(dropout.p * 0x1p32),
      .key = static_cast<uint64_t>(dropout.key),
      .samples = dropout.samples->const_data_ptr<int64_t>(),
      .first_head = dropout.first_head,
      .first_key = dropout.first_key,
      .all_keys = dropout.all_keys > 0 ? dropout.all_keys : keys};
}

/// The bias as kernels read it, over the scores' scale; undefined without.
Tensor scaled_bias(const KernelMask& mask, double scale) {
  return mask.bias ? mask.bias->to(at::kFloat).div(scale).contiguous() : Tensor();
}

kernels::BiasView bias_view(const Tensor& scaled, const KernelMask& mask) {
  if (!scaled.defined()) {
    return {};
  }
  return {
      scaled.const_data_ptr<float>(), scaled.size(1), static_cast<int32_t>(mask.first_distance)};
}

/// The gradient of a bias that is not there.
Tensor no_bias(const Tensor& q) {
  return at::empty({0}, q.options().dtype(at::kFloat));
}

/// Tasks for each head of `heads`, so that all threads work. With more than one a head costs 7
/// products of tiles instead of 5.
int64_t cuts_of(int64_t heads, int64_t tiles) {
  const int64_t threads = at::in_parallel_region() ? 1 : at::get_num_threads();
  return 7 * heads < 5 * threads ? std::min((threads + heads - 1) / heads, tiles) : 1;
}

/// Runs tasks on all threads, each with a workspace of its own.
template <class Run>
void share_out(int64_t tasks, size_t workspace, const Run& run) {
  const Workspaces workspaces(workspace);
  parallel_for(0, tasks, 1, [&](int64_t begin, int64_t end) {
    run(workspaces.mine(), begin, end);
    kernels::release_tiles();
  });
}

/// Bytes of the keys as packed for the forward pass; the values take as many.
size_t packed_bytes(const AttentionCall& call, const AttentionKernels& kernel) {
  return static_cast<size_t>(kernels::packed_elements(call)) * kernel.element;
}

Pair forward_cpu(
    const Tensor& query,
    const Tensor& key,
    const Tensor& value,
    double scale,
    const KernelMask& spec,
    const KernelDropout& drop
) {
  check(query, key, value, spec);
  if (!has_kernel(query) || scale <= 0) {
    if (query.scalar_type() != at::kDouble) { // which tests compute in
      TORCH_WARN_ONCE(
          "attention on the CPU makes its scores in parts, slowly: its kernel takes "
          "float32 and bfloat16, heads of an even size and a scale above 0, but here are ",
          query.scalar_type(),
          ", heads of ",
          query.size(3),
          " and a scale of ",
          scale
      );
    }
    return attention_plain(query, key, value, scale, spec, drop);
  }
  const Tensor q = whole_heads(query);
  const Tensor k = whole_heads(key);
  const Tensor v = whole_heads(value);
  const Tensor out = at::empty(q.sizes(), q.options());
  const Tensor lse = at::empty({q.size(1), q.size(2), q.size(0)}, q.options().dtype(at::kFloat));
  AttentionCall call = call_of(q, k, v, out, lse, scale, spec.cap);
  const auto mask = mask_of(q, k, spec);
  call.mask = mask.view();
  call.dropout = dropout_of(drop, call.keys);
  const Tensor bias = scaled_bias(spec, scale);
  call.bias = bias_view(bias, spec);
  const auto& kernel = kernels_for(q);
  const auto bytes = packed_bytes(call, kernel);
  const auto keys = c10::GetAllocator(at::kCPU)->allocate(bytes);
  const auto values = c10::GetAllocator(at::kCPU)->allocate(bytes);
  parallel_for(0, call.batch * call.kv_heads * call.strips(), 1, [&](int64_t begin, int64_t end) {
    kernel.pack_keys(call, keys.get(), values.get(), begin, end);
  });
  share_out(
      call.batch * call.heads * call.query_tiles(),
      kernel.forward_bytes(call),
      [&](void* memory, int64_t begin, int64_t end) {
        kernel.forward(call, kernels::products(), keys.get(), values.get(), memory, begin, end);
      }
  );
  return {out, lse};
}

AttentionGradients backward_cpu(
    const Tensor& gradient,
    const Tensor& query,
    const Tensor& key,
    const Tensor& value,
    const Tensor& out,
    const Tensor& lse,
    double scale,
    const KernelMask& spec,
    const KernelDropout& drop
) {
  check(query, key, value, spec);
  if (!has_kernel(query) || scale <= 0) {
    return attention_plain_backward(gradient, query, key, value, out, lse, scale, spec, drop);
  }
  const Tensor q = whole_heads(query);
  const Tensor k = whole_heads(key);
  const Tensor v = whole_heads(value);
  const Tensor dout = whole_heads(gradient);
  const Tensor dq = at::empty(q.sizes(), q.options());
  const Tensor dk = at::empty(k.sizes(), k.options());
  const Tensor dv = at::empty(v.sizes(), v.options());
  AttentionCall call = call_of(q, k, v, out, lse, scale, spec.cap);
  call.dout = strided(dout);
  call.dq = strided(dq);
  call.dk = strided(dk);
  call.dv = strided(dv);
  const auto mask = mask_of(q, k, spec);
  call.mask = mask.view();
  call.dropout = dropout_of(drop, call.keys);
  const auto& kernel = kernels_for(q);
  const Tensor bias = scaled_bias(spec, scale);
  Tensor dbias = no_bias(q);
  if (bias.defined()) { // each task adds up the sums of its own heads
    call.bias = bias_view(bias, spec);
    dbias = at::zeros({q.size(1), q.size(2), bias.size(1)}, bias.options());
    call.bias_gradient = dbias.mutable_data_ptr<float>();
  } else {
    call.cuts = cuts_of(call.batch * call.kv_heads, call.query_tiles());
  }
  share_out(
      call.batch * call.kv_heads * call.cuts,
      kernel.backward_bytes(call),
      [&](void* memory, int64_t begin, int64_t end) {
        kernel.backward(call, kernels::products(), memory, begin, end);
      }
  );
  return {dq, dk, dv, bias.defined() ? dbias.sum(0) : dbias};
}

Pair forward_plain(
    const Tensor& q,
    const Tensor& k,
    const Tensor& v,
    double scale,
    const KernelMask& spec,
    const KernelDropout& drop
) {
  check(q, k, v, spec);
  return attention_plain(q, k, v, scale, spec, drop);
}

Pair forward_gpu(
    const Tensor& q,
    const Tensor& k,
    const Tensor& v,
    double scale,
    const KernelMask& spec,
    const KernelDropout& drop
) {
  check(q, k, v, spec);
  const auto calls = gpu_calls(q, k, spec, drop);
  return calls ? attention_gpu(q, k, v, scale, *calls, spec, drop)
               : attention_plain(q, k, v, scale, spec, drop);
}

AttentionGradients backward_gpu(
    const Tensor& dout,
    const Tensor& q,
    const Tensor& k,
    const Tensor& v,
    const Tensor& out,
    const Tensor& lse,
    double scale,
    const KernelMask& spec,
    const KernelDropout& drop
) {
  check(q, k, v, spec);
  const auto calls = gpu_calls(q, k, spec, drop);
  if (!calls) {
    return attention_plain_backward(dout, q, k, v, out, lse, scale, spec, drop);
  }
  auto [dq, dk, dv] = attention_gpu_backward(dout, q, k, v, out, lse, scale, *calls, spec, drop);
  return {dq, dk, dv, no_bias(q)};
}

/// In a plan for a GPU what it would do, so that its memory is counted.
Pair forward_meta(
    const Tensor& q,
    const Tensor& k,
    const Tensor& v,
    double scale,
    const KernelMask& mask,
    const KernelDropout& dropout
) {
  check(q, k, v, mask);
  if (PlannedGpu::active()) {
    return forward_gpu(q, k, v, scale, mask, dropout);
  }
  const auto type = q.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  return {
      at::empty(q.sizes(), q.options()),
      at::empty({q.size(1), q.size(2), q.size(0)}, q.options().dtype(type))};
}

AttentionGradients backward_meta(
    const Tensor& dout,
    const Tensor& q,
    const Tensor& k,
    const Tensor& v,
    const Tensor& out,
    const Tensor& lse,
    double scale,
    const KernelMask& mask,
    const KernelDropout& dropout
) {
  if (PlannedGpu::active()) {
    return backward_gpu(dout, q, k, v, out, lse, scale, mask, dropout);
  }
  return {
      at::empty(q.sizes(), q.options()),
      at::empty(k.sizes(), k.options()),
      at::empty(v.sizes(), v.options()),
      mask.bias ? at::empty(mask.bias->sizes(), mask.bias->options()) : no_bias(q)};
}

std::vector<int64_t> list_of(const std::vector<TokenRun>& runs) {
  std::vector<int64_t> list;
  for (const auto& [first, count] : runs) {
    list.insert(list.end(), {first, count});
  }
  return list;
}

std::vector<TokenRun> runs_of(at::IntArrayRef list) {
  std::vector<TokenRun> runs;
  for (size_t i = 0; i < list.size(); i += 2) {
    runs.push_back({list[i], list[i + 1]});
  }
  return runs;
}

std::vector<int64_t> list_of(const std::vector<DocumentStart>& documents) {
  std::vector<int64_t> list;
  for (const auto& [sample, first, id] : documents) {
    list.insert(list.end(), {sample, first, id});
  }
  return list;
}

std::vector<DocumentStart> documents_of_list(at::IntArrayRef list) {
  std::vector<DocumentStart> documents;
  for (size_t i = 0; i < list.size(); i += 3) {
    documents.push_back({list[i], list[i + 1], list[i + 2]});
  }
  return documents;
}

/// A form of the operators as the dispatcher calls it, which knows no structs: the arguments one by
/// one.
template <auto Run>
Pair forward(
    const Tensor& q,
    const Tensor& k,
    const Tensor& v,
    double scale,
    bool causal,
    int64_t window,
    const OptionalTensor& query_index,
    const OptionalTensor& key_index,
    const OptionalTensor& query_segments,
    const OptionalTensor& key_segments,
    double dropout,
    int64_t dropout_key,
    const OptionalTensor& samples,
    int64_t first_head,
    int64_t first_key,
    int64_t all_keys,
    std::optional<double> pairs,
    const OptionalTensor& bias,
    int64_t first_distance,
    at::IntArrayRef query_runs,
    at::IntArrayRef key_runs,
    at::IntArrayRef query_documents,
    at::IntArrayRef key_documents,
    int64_t first_sample,
    double cap
) {
  return Run(
      q,
      k,
      v,
      scale,
      {causal,
       window,
       query_index,
       key_index,
       query_segments,
       key_segments,
       pairs,
       bias,
       first_distance,
       cap,
       runs_of(query_runs),
       runs_of(key_runs),
       documents_of_list(query_documents),
       documents_of_list(key_documents)},
      {dropout, dropout_key, samples, first_head, first_key, all_keys, first_sample}
  );
}

template <auto Run>
AttentionGradients backward(
    const Tensor& dout,
    const Tensor& q,
    const Tensor& k,
    const Tensor& v,
    const Tensor& out,
    const Tensor& lse,
    double scale,
    bool causal,
    int64_t window,
    const OptionalTensor& query_index,
    const OptionalTensor& key_index,
    const OptionalTensor& query_segments,
    const OptionalTensor& key_segments,
    double dropout,
    int64_t dropout_key,
    const OptionalTensor& samples,
    int64_t first_head,
    int64_t first_key,
    int64_t all_keys,
    std::optional<double> pairs,
    const OptionalTensor& bias,
    int64_t first_distance,
    at::IntArrayRef query_runs,
    at::IntArrayRef key_runs,
    at::IntArrayRef query_documents,
    at::IntArrayRef key_documents,
    int64_t first_sample,
    double cap
) {
  return Run(
      dout,
      q,
      k,
      v,
      out,
      lse,
      scale,
      {causal,
       window,
       query_index,
       key_index,
       query_segments,
       key_segments,
       pairs,
       bias,
       first_distance,
       cap,
       runs_of(query_runs),
       runs_of(key_runs),
       documents_of_list(query_documents),
       documents_of_list(key_documents)},
      {dropout, dropout_key, samples, first_head, first_key, all_keys, first_sample}
  );
}

#define MH_MASK_ARGUMENTS                                                                          \
  "float scale, bool causal, int window, Tensor? query_index, Tensor? key_index, "                 \
  "Tensor? query_segments, Tensor? key_segments, float dropout, int dropout_key, "                 \
  "Tensor? samples, int first_head, int first_key, int all_keys, float? pairs, "                   \
  "Tensor? bias, int first_distance, int[] query_runs, int[] key_runs, "                           \
  "int[] query_documents, int[] key_documents, int first_sample, float cap"

} // namespace

int64_t attention_workspace(
    const Tensor& q,
    const Tensor& k,
    double dropout,
    const OptionalTensor& bias,
    double cap,
    bool backward
) {
  if (!has_kernel(q)) { // scores, what is hidden of them and shares: see attention_plain
    return (backward ? 5 : 3) * q.size(1) * q.size(2) * plain_queries(q, k) * k.size(0) *
           (q.scalar_type() == at::kDouble ? 8 : 4);
  }
  AttentionCall call{};
  call.queries = q.size(0);
  call.keys = k.size(0);
  call.batch = q.size(1);
  call.heads = q.size(2);
  call.kv_heads = k.size(2);
  call.dim = q.size(3);
  call.dropout.threshold = dropout > 0 ? 1 : 0;
  call.cap = static_cast<float>(cap);
  const auto& kernel = kernels_for(q);
  const int64_t threads = at::get_num_threads();
  if (backward) {
    call.cuts = cuts_of(call.batch * call.kv_heads, call.query_tiles());
    const int64_t sums = bias ? bias->numel() * (1 + call.batch) * int64_t{4} : 0;
    return sums + threads * static_cast<int64_t>(kernel.backward_bytes(call));
  }
  return (bias ? bias->numel() * int64_t{4} : 0) +
         2 * static_cast<int64_t>(packed_bytes(call, kernel)) +
         threads * static_cast<int64_t>(kernel.forward_bytes(call));
}

void register_attention(Libraries& libraries) {
  libraries.definitions.def("attention(Tensor q, Tensor k, Tensor v, " MH_MASK_ARGUMENTS
                            ") -> (Tensor, Tensor)");
  libraries.definitions.def("attention_backward(Tensor dout, Tensor q, Tensor k, Tensor v, "
                            "Tensor out, Tensor lse, " MH_MASK_ARGUMENTS
                            ") -> (Tensor, Tensor, Tensor, Tensor)");
  libraries.cpu.impl("attention", forward<forward_cpu>);
  libraries.cpu.impl("attention_backward", backward<backward_cpu>);
  libraries.cuda.impl("attention", forward<forward_gpu>);
  libraries.cuda.impl("attention_backward", backward<backward_gpu>);
  libraries.plain.impl("attention", forward<forward_plain>);
  libraries.plain.impl("attention_backward", backward<attention_plain_backward>);
  libraries.meta.impl("attention", forward<forward_meta>);
  libraries.meta.impl("attention_backward", backward<backward_meta>);
}

Pair attention(
    const Tensor& q,
    const Tensor& k,
    const Tensor& v,
    double scale,
    const KernelMask& mask,
    const KernelDropout& dropout
) {
  check_no_sinks(mask);
  static const auto op = find_op<decltype(forward<forward_cpu>)>("megahost::attention");
  return op.call(
      q,
      k,
      v,
      scale,
      mask.causal,
      mask.window,
      mask.query_index,
      mask.key_index,
      mask.query_segments,
      mask.key_segments,
      dropout.p,
      dropout.key,
      dropout.samples,
      dropout.first_head,
      dropout.first_key,
      dropout.all_keys,
      mask.pairs,
      mask.bias,
      mask.first_distance,
      list_of(mask.query_runs),
      list_of(mask.key_runs),
      list_of(mask.query_documents),
      list_of(mask.key_documents),
      dropout.first_sample,
      mask.cap
  );
}

AttentionGradients attention_backward(
    const Tensor& dout,
    const Tensor& q,
    const Tensor& k,
    const Tensor& v,
    const Tensor& out,
    const Tensor& lse,
    double scale,
    const KernelMask& mask,
    const KernelDropout& dropout
) {
  check_no_sinks(mask);
  static const auto op = find_op<decltype(backward<backward_cpu>)>("megahost::attention_backward");
  return op.call(
      dout,
      q,
      k,
      v,
      out,
      lse,
      scale,
      mask.causal,
      mask.window,
      mask.query_index,
      mask.key_index,
      mask.query_segments,
      mask.key_segments,
      dropout.p,
      dropout.key,
      dropout.samples,
      dropout.first_head,
      dropout.first_key,
      dropout.all_keys,
      mask.pairs,
      mask.bias,
      mask.first_distance,
      list_of(mask.query_runs),
      list_of(mask.key_runs),
      list_of(mask.query_documents),
      list_of(mask.key_documents),
      dropout.first_sample,
      mask.cap
  );
}

} // namespace mh::ops
