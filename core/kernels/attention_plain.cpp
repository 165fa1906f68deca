#include "core/kernels/attention_plain.hpp"

#include "core/kernels/ops.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/zeros.h>

#include <limits>

namespace mh::ops {

namespace {

using at::Tensor;

/// [seq, batch, heads, dim] -> [batch, heads, seq, dim] in the type that is computed in.
Tensor heads_first(const Tensor& x, int64_t group) {
  const auto type = x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const Tensor y = x.permute({1, 2, 0, 3}).to(type);
  if (group == 1) {
    return y;
  }
  const auto b = y.size(0), h = y.size(1), s = y.size(2), d = y.size(3);
  return y.unsqueeze(2).expand({b, h, group, s, d}).reshape({b, h * group, s, d});
}

/// Back, summed over the heads of a group, contiguous.
Tensor tokens_first(const Tensor& x, int64_t group, at::ScalarType type) {
  Tensor y = x;
  if (group != 1) {
    y = x.view({x.size(0), x.size(1) / group, group, x.size(2), x.size(3)}).sum(2);
  }
  return y.permute({2, 0, 1, 3}).to(type).contiguous();
}

Tensor index_or_count(
    const std::optional<Tensor>& index, int64_t first, int64_t count, const Tensor& like
) {
  return index ? *index : at::arange(first, first + count, like.options().dtype(at::kLong));
}

/// [batch or 1, 1, queries, keys]: whether the key is hidden from the query.
Tensor hidden(const Tensor& q, const Tensor& k, const KernelMask& mask) {
  const int64_t queries = q.size(0);
  const int64_t keys = k.size(0);
  const Tensor own = index_or_count(mask.query_index, keys - queries, queries, q).unsqueeze(1);
  const Tensor others = index_or_count(mask.key_index, 0, keys, q).unsqueeze(0);
  const Tensor distance = own - others;
  Tensor out = distance.ne(distance);
  if (mask.causal) {
    out = out.bitwise_or(distance.lt(0));
  }
  if (mask.window > 0) {
    out = out.bitwise_or(distance.abs().ge(mask.window));
  }
  out = out.unsqueeze(0);
  if (mask.query_segments && mask.key_segments) {
    out =
        out.bitwise_or(mask.query_segments->t().unsqueeze(2).ne(mask.key_segments->t().unsqueeze(1))
        );
  }
  return out.unsqueeze(1);
}

/// [queries, keys]: the bias's column of each pair. Pairs that are not seen have any.
Tensor bias_columns(const Tensor& q, const Tensor& k, const KernelMask& mask) {
  const auto queries = q.size(0), keys = k.size(0);
  const Tensor own = index_or_count(mask.query_index, keys - queries, queries, q).unsqueeze(1);
  const Tensor others = index_or_count(mask.key_index, 0, keys, q).unsqueeze(0);
  return (others - own - mask.first_distance).clamp(0, mask.bias->size(1) - 1);
}

Tensor scores(const Tensor& q, const Tensor& k, double scale, const KernelMask& mask) {
  const Tensor left = heads_first(q, 1);
  const Tensor right = heads_first(k, q.size(2) / k.size(2));
  Tensor s = at::matmul(left, right.transpose(-2, -1)) * scale;
  if (mask.cap > 0) {
    s = (s / mask.cap).tanh() * mask.cap;
  }
  if (mask.bias) {
    const Tensor columns = bias_columns(q, k, mask);
    s = s + at::index_select(*mask.bias, 1, columns.reshape({-1}))
                .view({-1, columns.size(0), columns.size(1)});
  }
  return s.masked_fill(hidden(q, k, mask), -std::numeric_limits<double>::infinity());
}

/// The gradient of the bias from that of the scores, [batch, heads, queries, keys].
Tensor bias_gradient(const Tensor& ds, const Tensor& q, const Tensor& k, const KernelMask& mask) {
  if (!mask.bias) {
    return at::empty({0}, ds.options());
  }
  const Tensor sums = ds.sum(0).flatten(1);
  const Tensor columns = bias_columns(q, k, mask).reshape({-1});
  return at::zeros(mask.bias->sizes(), ds.options()).index_add_(1, columns, sums);
}

/// The slope of bounded scores by those before; 0 where the key is hidden.
Tensor slope_of_cap(const Tensor& s, double cap) {
  return (s.clamp_min(-cap) / cap).square().neg().add(1);
}

/// exp(s - lse), zero in rows that see nothing.
Tensor shares(const Tensor& s, const Tensor& lse) {
  const Tensor base = lse.masked_fill(lse.eq(-std::numeric_limits<double>::infinity()), 0);
  return (s - base.unsqueeze(-1)).exp();
}

/// x with dropout's mask and scale: [batch, heads, queries, keys].
Tensor dropped(const Tensor& x, const KernelMask& mask, const KernelDropout& dropout) {
  if (dropout.p == 0) {
    return x;
  }
  const auto b = x.size(0), h = x.size(1), s = x.size(2), t = x.size(3);
  const Tensor tokens = index_or_count(mask.query_index, t - s, s, x);
  const int64_t all = dropout.all_keys > 0 ? dropout.all_keys : t;
  const Tensor rows = x.permute({2, 0, 1, 3}).contiguous(); // [queries, batch, heads, keys]
  const Tensor out = at::empty_like(rows);
  const int64_t together = all == t ? h : 1; // heads whose numbers follow one another
  for (int64_t head = 0; head < h; head += together) {
    const Tensor part = rows.narrow(2, head, together).reshape({s, b, together * t});
    const int64_t first = (dropout.first_head + head) * all + dropout.first_key;
    out.narrow(2, head, together)
        .copy_(ops::dropout(part, dropout.p, dropout.key, *dropout.samples, tokens, first)
                   .view({s, b, together, t}));
  }
  return out.permute({1, 2, 0, 3});
}

} // namespace

std::tuple<Tensor, Tensor> attention_plain(
    const Tensor& q,
    const Tensor& k,
    const Tensor& v,
    double scale,
    const KernelMask& mask,
    const KernelDropout& dropout
) {
  const Tensor s = scores(q, k, scale, mask);
  const Tensor lse = s.logsumexp(-1);
  const Tensor out =
      at::matmul(dropped(shares(s, lse), mask, dropout), heads_first(v, q.size(2) / v.size(2)));
  return {tokens_first(out, 1, q.scalar_type()), lse};
}

std::tuple<Tensor, Tensor, Tensor, Tensor> attention_plain_backward(
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
  const int64_t group = q.size(2) / k.size(2);
  const Tensor s = scores(q, k, scale, mask);
  const Tensor p = shares(s, lse);
  const Tensor d = heads_first(dout, 1);
  const Tensor delta = (d * heads_first(out, 1)).sum(-1, /*keepdim=*/true);
  const Tensor dp = at::matmul(d, heads_first(v, group).transpose(-2, -1));
  Tensor unscaled = p * (dropped(dp, mask, dropout) - delta);
  if (mask.cap > 0) {
    unscaled = unscaled * slope_of_cap(s, mask.cap);
  }
  const Tensor ds = unscaled * scale;
  const Tensor left = ds.transpose(-2, -1);
  return {
      tokens_first(at::matmul(ds, heads_first(k, group)), 1, q.scalar_type()),
      tokens_first(at::matmul(left, heads_first(q, 1)), group, k.scalar_type()),
      tokens_first(
          at::matmul(dropped(p, mask, dropout).transpose(-2, -1), d), group, v.scalar_type()
      ),
      bias_gradient(unscaled, q, k, mask)};
}

} // namespace mh::ops
