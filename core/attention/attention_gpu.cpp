// How LibTorch's kernel is called: `_flash_attention_forward` and `_flash_attention_backward` of
// aten/src/ATen/native/transformers/cuda, version 2.11. It takes [batch, seq, heads, dim] of any
// strides but the last, or sequences one after another [tokens, heads, dim] with their ends; heads
// of a multiple of 8; and gives the log-sum-exp as [batch, heads, seq] or [heads, tokens], +inf
// where nothing is seen. Backward gets the seed and the offset that forward took from the device's
// generator as the generator's state.

#include "core/attention/attention_gpu.hpp"

#include "core/memory/staging.hpp"
#include "megahost/shuffle.hpp"

#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/_flash_attention_backward.h>
#include <ATen/ops/_flash_attention_forward.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <array>
#include <limits>
#include <mutex>
#include <string>

namespace mh::ops {

namespace {

using at::Tensor;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr int64_t kLargestHead = 256;

/// Why the kernel cannot do it; empty if it can, as far as masks are not looked at.
std::string refusal(const Tensor& q, const KernelMask& mask, const KernelDropout& dropout) {
  const auto type = q.scalar_type();
  if (type != at::kHalf && type != at::kBFloat16) {
    return std::string("its kernel knows bfloat16 and float16 but not ") + c10::toString(type);
  }
  if (q.size(3) > kLargestHead) {
    return "its kernel knows heads of at most 256 but not of " + std::to_string(q.size(3));
  }
  if (mask.bias) {
    return "its kernel knows no bias by distance";
  }
  if (mask.cap > 0) {
    return "its kernel knows no cap of scores";
  }
  if (dropout.p > 0 && dropout.first_sample < 0) {
    return "its kernel's dropout depends on the layout, and layouts are compared";
  }
  return "";
}

/// A mask that a plan makes up where arrays hold nothing: each sample is one document.
KernelMask planned(const KernelMask& mask, int64_t batch) {
  KernelMask one = mask;
  for (int64_t sample = 0; sample < batch; ++sample) {
    one.query_documents.push_back({.sample = sample});
  }
  one.key_documents = one.query_documents;
  return one;
}

/// Whether the host knows what the indices and segments say.
bool known(const KernelMask& mask) {
  return (!mask.query_index || !mask.query_runs.empty()) &&
         (!mask.key_index || !mask.key_runs.empty()) &&
         (!mask.query_segments || !mask.query_documents.empty()) &&
         (!mask.key_segments || !mask.key_documents.empty());
}

bool is_varlen(const FlashCall& call) {
  return !call.query_ends.empty();
}

/// The call's rows with heads of a multiple of 8, as the kernel takes them.
Tensor taken(const Tensor& x, int64_t first, int64_t count, const FlashCall& call) {
  Tensor rows = x.narrow(0, first, count);
  if (const int64_t rest = rows.size(3) % 8; rest != 0) {
    rows = at::constant_pad_nd(rows, {0, 8 - rest});
  } else if (rows.stride(3) != 1) {
    rows = rows.contiguous();
  }
  rows = rows.transpose(0, 1);
  return is_varlen(call) ? rows.reshape({rows.size(0) * count, rows.size(2), rows.size(3)}) : rows;
}

/// The kernel's result for `like`, [rows, batch, heads, dim].
Tensor given(const Tensor& x, const Tensor& like, int64_t count) {
  const Tensor rows = x.dim() == 3 ? x.view({like.size(1), count, like.size(2), x.size(2)}) : x;
  return rows.narrow(3, 0, like.size(3)).transpose(0, 1);
}

struct Ends {
  std::optional<Tensor> queries, keys;
};

/// Ends of sequences on the device. Layers of a microbatch ask for the same ones, so the latest
/// stay: only the first layer copies them.
Tensor ends_on(const std::vector<int32_t>& ends, const at::Device& device) {
  if (device.is_meta()) {
    return at::empty(
        {static_cast<int64_t>(ends.size())}, at::TensorOptions().dtype(at::kInt).device(device)
    );
  }

  struct Kept {
    std::vector<int32_t> ends;
    c10::Stream stream;
    Tensor tensor;
  };

  thread_local std::vector<Kept> kept;
  thread_local size_t oldest = 0;
  constexpr size_t kMost = 16;
  const auto stream = c10::impl::VirtualGuardImpl(device.type()).getStream(device);
  for (const Kept& one : kept) {
    if (one.stream == stream && one.ends == ends) {
      return one.tensor;
    }
  }
  const Tensor host = at::tensor(ends, at::kInt);
  Kept made{ends, stream, staged(host, device)};
  if (kept.size() < kMost) {
    return kept.emplace_back(std::move(made)).tensor;
  }
  return (kept[oldest++ % kMost] = std::move(made)).tensor;
}

Ends ends_of(const FlashCall& call, const at::Device& device) {
  return is_varlen(call) ? Ends{ends_on(call.query_ends, device), ends_on(call.key_ends, device)}
                         : Ends{};
}

/// With one query the kernel would take sequences of none for sequences of one.
int64_t longest_queries(const FlashCall& call) {
  return is_varlen(call) ? std::max<int64_t>(call.longest_queries, 2) : call.queries;
}

bool is_causal(const FlashCall& call) {
  return call.left < 0 && call.right == 0;
}

/// The seed of a call's masks: the same in forward, recompute and backward, another in each call.
uint64_t seed_of(const KernelDropout& dropout, const KernelMask& mask, const FlashCall& call) {
  const auto first_run = mask.query_runs.empty() ? 0 : mask.query_runs.front().first;
  uint64_t seed = static_cast<uint64_t>(dropout.key);
  for (const int64_t part :
       {dropout.first_sample, dropout.first_head, dropout.first_key, first_run, call.first_query}) {
    seed = mix(seed ^ static_cast<uint64_t>(part));
  }
  return seed;
}

/// Seed and offset 0, as forward leaves them.
Tensor generator_state(uint64_t seed, const at::Device& device) {
  Tensor state = at::zeros({2}, at::TensorOptions().dtype(at::kLong).device(device));
  state.select(0, 0).fill_(static_cast<int64_t>(seed));
  return state.view(at::kUInt64);
}

std::tuple<Tensor, Tensor> run_forward(
    const Tensor& q,
    const Tensor& k,
    const Tensor& v,
    double scale,
    const FlashCall& call,
    const KernelMask& mask,
    const KernelDropout& dropout
) {
  const auto ends = ends_of(call, q.device());
  const auto run = [&] {
    return at::_flash_attention_forward(
        taken(q, call.first_query, call.queries, call),
        taken(k, call.first_key, call.keys, call),
        taken(v, call.first_key, call.keys, call),
        ends.queries,
        ends.keys,
        longest_queries(call),
        is_varlen(call) ? call.longest_keys : call.keys,
        dropout.p,
        is_causal(call),
        /*return_debug_mask=*/false,
        scale,
        call.left,
        call.right
    );
  };
  const auto with_seed = [&] {
    static std::mutex mutex; // ranks that are threads may share a GPU's generator
    const std::lock_guard lock(mutex);
    if (!q.is_meta()) {
      auto generator = at::globalContext().defaultGenerator(q.device());
      const std::lock_guard own(generator.mutex());
      generator.set_current_seed(seed_of(dropout, mask, call));
    }
    return run();
  };
  const auto result = dropout.p > 0 ? with_seed() : run();
  Tensor lse = std::get<1>(result);
  if (lse.dim() == 2) {
    lse = lse.view({lse.size(0), q.size(1), call.queries}).transpose(0, 1);
  }
  if (call.blind) {
    lse = lse.masked_fill(lse.eq(kInfinity), -kInfinity);
  }
  return {given(std::get<0>(result), q, call.queries), lse};
}

std::tuple<Tensor, Tensor, Tensor> run_backward(
    const Tensor& dout,
    const Tensor& q,
    const Tensor& k,
    const Tensor& v,
    const Tensor& out,
    const Tensor& all_lse,
    double scale,
    const FlashCall& call,
    const KernelMask& mask,
    const KernelDropout& dropout
) {
  const auto ends = ends_of(call, q.device());
  Tensor lse = all_lse.narrow(2, call.first_query, call.queries);
  if (is_varlen(call)) {
    lse = lse.transpose(0, 1).reshape({q.size(2), -1});
  }
  const Tensor state =
      dropout.p > 0 ? generator_state(seed_of(dropout, mask, call), q.device()) : Tensor();
  const auto [dq, dk, dv] = at::_flash_attention_backward(
      taken(dout, call.first_query, call.queries, call),
      taken(q, call.first_query, call.queries, call),
      taken(k, call.first_key, call.keys, call),
      taken(v, call.first_key, call.keys, call),
      taken(out, call.first_query, call.queries, call),
      lse.contiguous(),
      ends.queries.value_or(Tensor()),
      ends.keys.value_or(Tensor()),
      longest_queries(call),
      is_varlen(call) ? call.longest_keys : call.keys,
      dropout.p,
      is_causal(call),
      state,
      /*unused=*/Tensor(),
      scale,
      call.left,
      call.right
  );
  return {given(dq, q, call.queries), given(dk, k, call.keys), given(dv, k, call.keys)};
}

/// Whether the one call sees to all rows.
bool covers(const std::vector<FlashCall>& calls, const Tensor& q, const Tensor& k) {
  return calls.size() == 1 && calls[0].queries == q.size(0) && calls[0].keys == k.size(0);
}

} // namespace

std::optional<std::vector<FlashCall>>
gpu_calls(const Tensor& q, const Tensor& k, const KernelMask& mask, const KernelDropout& dropout) {
  std::string reason = refusal(q, mask, dropout);
  if (reason.empty()) {
    const bool made_up = q.is_meta() && mask.query_segments && mask.query_documents.empty();
    const auto seen = made_up ? planned(mask, q.size(1)) : mask;
    auto calls = known(seen) ? flash_calls(seen, q.size(0), k.size(0), q.size(1)) : std::nullopt;
    if (calls) {
      return calls;
    }
    reason =
        "its kernel takes windows and lengths of documents, and none mean the same as this mask";
  }
  if (q.scalar_type() != at::kDouble && !q.is_meta()) { // which tests compute in
    TORCH_WARN_ONCE("attention on a GPU makes its scores in parts, slowly: ", reason);
  }
  return std::nullopt;
}

std::tuple<Tensor, Tensor> attention_gpu(
    const Tensor& q,
    const Tensor& k,
    const Tensor& v,
    double scale,
    const std::vector<FlashCall>& calls,
    const KernelMask& mask,
    const KernelDropout& dropout
) {
  if (calls.size() == 1 && calls[0].queries == q.size(0)) {
    const auto [out, lse] = run_forward(q, k, v, scale, calls[0], mask, dropout);
    return {out.contiguous(), lse.contiguous()};
  }
  const Tensor out = at::zeros(q.sizes(), q.options());
  const Tensor lse =
      at::full({q.size(1), q.size(2), q.size(0)}, -kInfinity, q.options().dtype(at::kFloat));
  for (const FlashCall& call : calls) {
    const auto [part, part_lse] = run_forward(q, k, v, scale, call, mask, dropout);
    out.narrow(0, call.first_query, call.queries).copy_(part);
    lse.narrow(2, call.first_query, call.queries).copy_(part_lse);
  }
  return {out, lse};
}

std::tuple<Tensor, Tensor, Tensor> attention_gpu_backward(
    const Tensor& dout,
    const Tensor& q,
    const Tensor& k,
    const Tensor& v,
    const Tensor& out,
    const Tensor& lse,
    double scale,
    const std::vector<FlashCall>& calls,
    const KernelMask& mask,
    const KernelDropout& dropout
) {
  if (covers(calls, q, k)) {
    const auto [dq, dk, dv] = run_backward(dout, q, k, v, out, lse, scale, calls[0], mask, dropout);
    return {dq.contiguous(), dk.contiguous(), dv.contiguous()};
  }
  const Tensor dq = at::zeros(q.sizes(), q.options());
  const Tensor dk = at::zeros(k.sizes(), k.options());
  const Tensor dv = at::zeros(v.sizes(), v.options());
  for (const FlashCall& call : calls) {
    const auto [dq_part, dk_part, dv_part] =
        run_backward(dout, q, k, v, out, lse, scale, call, mask, dropout);
    dq.narrow(0, call.first_query, call.queries).copy_(dq_part);
    dk.narrow(0, call.first_key, call.keys).add_(dk_part);
    dv.narrow(0, call.first_key, call.keys).add_(dv_part);
  }
  return {dq, dk, dv};
}

} // namespace mh::ops
