#include "core/kernels/attention_plain.hpp"

#include "core/kernels/ops.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/matmul.h>

#include <algorithm>
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

/// Some neighbouring queries, [batch, heads, queries, dim], and the mask's part that is theirs, with
/// their indices; all keys.
struct QueryPart {
  int64_t first, count;
  Tensor queries, keys;
  KernelMask mask;
};

/// Calls `work` with one part of the queries after another: the scores of all are never there.
template <class Work>
void by_queries(const Tensor& q, const Tensor& k, const KernelMask& mask, const Work& work) {
  const int64_t all = q.size(0), most = plain_queries(q, k);
  const Tensor keys = heads_first(k, q.size(2) / k.size(2));
  const Tensor index = index_or_count(mask.query_index, k.size(0) - all, all, q);
  for (int64_t first = 0; first < all; first += most) {
    const int64_t count = std::min(most, all - first);
    QueryPart part{first, count, heads_first(q.narrow(0, first, count), 1), keys, mask};
    part.mask.query_index = index.narrow(0, first, count);
    if (mask.query_segments) {
      part.mask.query_segments = mask.query_segments->narrow(0, first, count);
    }
    work(part);
  }
}

/// [queries, keys]: how far the keys lie behind the query.
Tensor distances(const QueryPart& part) {
  const Tensor others = index_or_count(part.mask.key_index, 0, part.keys.size(2), part.keys);
  return part.mask.query_index->unsqueeze(1) - others.unsqueeze(0);
}

/// [batch or 1, 1, queries, keys]: whether the key is hidden from the query.
Tensor hidden(const QueryPart& part) {
  const KernelMask& mask = part.mask;
  const Tensor distance = distances(part);
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
Tensor bias_columns(const QueryPart& part) {
  return (distances(part).neg() - part.mask.first_distance).clamp(0, part.mask.bias->size(1) - 1);
}

Tensor scores(const QueryPart& part, double scale) {
  const KernelMask& mask = part.mask;
  Tensor s = at::matmul(part.queries, part.keys.transpose(-2, -1)).mul_(scale);
  if (mask.cap > 0) {
    s.div_(mask.cap).tanh_().mul_(mask.cap);
  }
  if (mask.bias) {
    const Tensor columns = bias_columns(part);
    s.add_(at::index_select(*mask.bias, 1, columns.reshape({-1}))
               .view({-1, columns.size(0), columns.size(1)}));
  }
  return s.masked_fill_(hidden(part), -std::numeric_limits<double>::infinity());
}

/// Adds a part's gradient of the bias, from that of the scores, [batch, heads, queries, keys].
void add_bias_gradient(const Tensor& sum, const Tensor& ds, const QueryPart& part) {
  if (part.mask.bias) {
    sum.index_add_(1, bias_columns(part).reshape({-1}), ds.sum(0).flatten(1));
  }
}

/// The slope of bounded scores by those before; 0 where the key is hidden.
Tensor slope_of_cap(const Tensor& s, double cap) {
  return (s.clamp_min(-cap) / cap).square().neg().add(1);
}

/// exp(s - lse), zero in rows that see nothing.
Tensor shares(const Tensor& s, const Tensor& lse) {
  const Tensor base = lse.masked_fill(lse.eq(-std::numeric_limits<double>::infinity()), 0);
  return (s - base.unsqueeze(-1)).exp_();
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

int64_t plain_queries(const Tensor& q, const Tensor& k) {
  constexpr int64_t kScores = int64_t{1} << 24; // elements of a matrix of scores
  const int64_t row = std::max<int64_t>(1, q.size(1) * q.size(2) * k.size(0));
  return std::clamp<int64_t>(kScores / row, 1, std::max<int64_t>(1, q.size(0)));
}

std::tuple<Tensor, Tensor> attention_plain(
    const Tensor& q,
    const Tensor& k,
    const Tensor& v,
    double scale,
    const KernelMask& mask,
    const KernelDropout& dropout
) {
  const Tensor values = heads_first(v, q.size(2) / v.size(2));
  const Tensor out = at::empty(q.sizes(), q.options());
  const Tensor lse = at::empty({q.size(1), q.size(2), q.size(0)}, values.options());
  by_queries(q, k, mask, [&](const QueryPart& part) {
    const Tensor s = scores(part, scale);
    const Tensor sums = s.logsumexp(-1);
    const Tensor rows = at::matmul(dropped(shares(s, sums), part.mask, dropout), values);
    out.narrow(0, part.first, part.count).copy_(rows.permute({2, 0, 1, 3}));
    lse.narrow(2, part.first, part.count).copy_(sums);
  });
  return {out, lse};
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
  const Tensor values = heads_first(v, group);
  const Tensor dq = at::empty(q.sizes(), q.options());
  const Tensor dk = values.new_zeros({values.size(0), values.size(1), k.size(0), k.size(3)});
  const Tensor dv = values.new_zeros(values.sizes());
  const auto columns = mask.bias ? mask.bias->sizes().vec() : std::vector<int64_t>{0};
  const Tensor dbias = values.new_zeros(columns);
  by_queries(q, k, mask, [&](const QueryPart& part) {
    const auto of = [&](const Tensor& x) {
      return heads_first(x.narrow(0, part.first, part.count), 1);
    };
    const Tensor s = scores(part, scale);
    const Tensor p = shares(s, lse.narrow(2, part.first, part.count));
    const Tensor d = of(dout);
    const Tensor delta = (d * of(out)).sum(-1, /*keepdim=*/true);
    const Tensor dp = at::matmul(d, values.transpose(-2, -1));
    Tensor ds = p * (dropped(dp, part.mask, dropout) - delta);
    if (mask.cap > 0) {
      ds.mul_(slope_of_cap(s, mask.cap));
    }
    add_bias_gradient(dbias, ds, part);
    ds.mul_(scale);
    dq.narrow(0, part.first, part.count).copy_(at::matmul(ds, part.keys).permute({2, 0, 1, 3}));
    dk.add_(at::matmul(ds.transpose(-2, -1), part.queries));
    dv.add_(at::matmul(dropped(p, part.mask, dropout).transpose(-2, -1), d));
  });
  return {
      dq,
      tokens_first(dk, group, k.scalar_type()),
      tokens_first(dv, group, v.scalar_type()),
      dbias};
}

} // namespace mh::ops
