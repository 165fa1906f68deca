// The methods that make whole keys, or whole samples, of what the ranks hold: conversions do it.

#include "methods.hpp"

#include <megahost/context.hpp>
#include <megahost/error.hpp>
#include <megahost/placement.hpp>

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>

#include <utility>
#include <vector>

namespace context_parallel {

namespace {

using at::Tensor;
using mh::Along;
using mh::MeshAxis;
using mh::PlacementType;

mh::Placement along_cp(Along along) {
  mh::Placement placement;
  placement[MeshAxis::cp] = along;
  return placement;
}

Tensor over_cp(const Tensor& x, Along from, Along to, const mh::StepContext& context) {
  return mh::convert(x, along_cp(from), along_cp(to), context.mesh());
}

int64_t ranks(const mh::StepContext& context) {
  return context.mesh().size(MeshAxis::cp);
}

/// Pieces in the order of the ranks -> in the order of the sample: piece i of rank r's two is the
/// sample's r, or 2 n - 1 - r.
Tensor to_sample_order(const Tensor& x, int64_t n) {
  const auto pieces = x.chunk(2 * n, 0);
  std::vector<Tensor> ordered(pieces.size());
  for (size_t r = 0; r < static_cast<size_t>(n); ++r) {
    ordered[r] = pieces[2 * r];
    ordered[pieces.size() - 1 - r] = pieces[2 * r + 1];
  }
  return at::cat(ordered);
}

Tensor to_rank_order(const Tensor& x, int64_t n) {
  const auto pieces = x.chunk(2 * n, 0);
  std::vector<Tensor> ordered;
  for (size_t r = 0; r < static_cast<size_t>(n); ++r) {
    ordered.push_back(pieces[r]);
    ordered.push_back(pieces[pieces.size() - 1 - r]);
  }
  return at::cat(ordered);
}

class AllGather : public mh::AttentionMethod {
public:
  Tensor attend(
      const Tensor& q,
      const Tensor& k,
      const Tensor& v,
      double scale,
      const mh::ops::KernelMask& mask,
      const mh::ops::KernelDropout& dropout,
      mh::StepContext& context
  ) const override {
    const auto whole = [&](const Tensor& x) {
      const Tensor all =
          over_cp(x, {PlacementType::split, 0}, {PlacementType::replicated, 0}, context);
      return to_sample_order(all, ranks(context));
    };
    const Tensor keys = whole(k);
    const Tensor values = whole(v);
    auto seen = mask;
    seen.key_index = in_order(keys.size(0), *mask.key_index);
    seen.key_runs = {{0, keys.size(0)}};
    seen.pairs = pairs_of_rank(q, k, mask, context);
    seen.key_segments = all_segments(mask.key_segments, context);
    return mh::ops::flash_attention(q, keys, values, scale, seen, dropout);
  }
};

class AllToAll : public mh::AttentionMethod {
public:
  Tensor attend(
      const Tensor& q,
      const Tensor& k,
      const Tensor& v,
      double scale,
      const mh::ops::KernelMask& mask,
      const mh::ops::KernelDropout& dropout,
      mh::StepContext& context
  ) const override {
    const int64_t n = ranks(context);
    if (q.size(2) % n != 0 || k.size(2) % n != 0) {
      throw mh::Error(
          "context parallel " + std::to_string(n) +
              " exchanges heads (all_to_all), but a rank has " + std::to_string(q.size(2)) +
              " heads and " + std::to_string(k.size(2)) + " key-value heads of this layer",
          "choose parallel.context so that it divides both, or parallel.context_method = \"ring\""
      );
    }
    const auto some_heads = [&](const Tensor& x) {
      return to_sample_order(
          over_cp(x, {PlacementType::split, 0}, {PlacementType::split, 2}, context), n
      );
    };
    const Tensor queries = some_heads(q);
    const Tensor keys = some_heads(k);
    const Tensor values = some_heads(v);
    auto seen = mask;
    seen.query_index = in_order(queries.size(0), *mask.query_index);
    seen.key_index = in_order(keys.size(0), *mask.key_index);
    seen.query_runs = {{0, queries.size(0)}};
    seen.key_runs = {{0, keys.size(0)}};
    seen.query_segments = all_segments(mask.query_segments, context);
    seen.key_segments = all_segments(mask.key_segments, context);
    const int64_t first_head = context.mesh().coordinate(MeshAxis::cp) * queries.size(2);
    if (mask.bias) {
      seen.bias = mask.bias->narrow(0, first_head, queries.size(2));
    }
    if (mask.sinks) {
      seen.sinks = mask.sinks->narrow(0, first_head, queries.size(2));
    }
    auto drop = dropout;
    drop.first_head += first_head;
    const Tensor out = mh::ops::flash_attention(queries, keys, values, scale, seen, drop);
    return over_cp(
        to_rank_order(out, n), {PlacementType::split, 2}, {PlacementType::split, 0}, context
    );
  }
};

} // namespace

Tensor in_order(int64_t length, const Tensor& like) {
  return at::arange(length, like.options());
}

double pairs_of_rank(
    const Tensor& q,
    const Tensor& k,
    const mh::ops::KernelMask& mask,
    const mh::StepContext& context
) {
  const int64_t n = ranks(context);
  return mh::ops::visible_pairs(n * q.size(0), n * k.size(0), mask.causal, mask.window) /
         static_cast<double>(n);
}

std::optional<Tensor>
all_segments(const std::optional<Tensor>& segments, mh::StepContext& context) {
  if (!segments) {
    return std::nullopt;
  }
  return context.cached("segments of whole samples", *segments, [&] {
    const auto& group = context.mesh().group(MeshAxis::cp);
    return to_sample_order(group.all_gather(*segments, 0), group.size());
  });
}

std::unique_ptr<const mh::AttentionMethod> make_all_gather() {
  return std::make_unique<AllGather>();
}

std::unique_ptr<const mh::AttentionMethod> make_all_to_all() {
  return std::make_unique<AllToAll>();
}

} // namespace context_parallel
