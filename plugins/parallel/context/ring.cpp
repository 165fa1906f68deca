// Ring attention: each rank's keys and values visit all others; what they contribute is merged by
// the log-sum-exp of their scores. Backward, the gradients of keys and values travel with them and
// are at home after a whole turn.

#include "methods.hpp"

#include <megahost/context.hpp>
#include <megahost/saved.hpp>

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/logaddexp.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>

#include <limits>
#include <memory>
#include <utility>
#include <vector>

namespace context_parallel {

namespace {

using at::Tensor;
using mh::MeshAxis;
using mh::TokenRun;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// The inputs of both passes in addition to q, k and v. Gradients are passed on in the accumulating
/// type.
struct RingCall {
  const mh::Group* group = nullptr;
  double scale = 0;
  mh::ops::KernelMask mask; // mask of this rank's tokens, without sinks
  mh::ops::KernelDropout dropout;
  std::optional<Tensor> segments; // segments of the keys of whole samples, [keys, batch]
  int64_t queries = 0, keys = 0;  // tokens of whole samples
  double pairs = 0;               // that a plan counts of each visit

  [[nodiscard]] int64_t ranks() const { return group->size(); }

  /// The rank whose keys and values are here after so many steps.
  [[nodiscard]] int64_t owner(int64_t step) const {
    return (group->index() - step + ranks()) % ranks();
  }

  /// The pieces of `owner`'s keys that some query of this rank may see.
  [[nodiscard]] std::vector<TokenRun> pieces(int64_t owner) const {
    const auto own = mh::sharded_runs(mh::Sharding::zigzag, queries, ranks(), group->index());
    auto runs = mh::sharded_runs(mh::Sharding::zigzag, keys, ranks(), owner);
    if (mask.causal) {
      std::erase_if(runs, [&](const TokenRun& run) { return run.first > own.back().first; });
    }
    return runs;
  }

  /// Pieces that are seen while keys and values go round.
  [[nodiscard]] int64_t visits() const {
    int64_t count = 0;
    for (int64_t step = 0; step < ranks(); ++step) {
      count += static_cast<int64_t>(pieces(owner(step)).size());
    }
    return count;
  }

  /// Mask and dropout of this rank's queries and the keys of one piece.
  [[nodiscard]] std::pair<mh::ops::KernelMask, mh::ops::KernelDropout> of(const TokenRun& run
  ) const {
    auto seen = mask;
    seen.key_index = in_order(run.count, *mask.key_index) + run.first;
    seen.key_runs = {run};
    seen.pairs = pairs;
    if (segments) {
      seen.key_segments = segments->narrow(0, run.first, run.count);
    }
    auto drop = dropout;
    drop.first_key = run.first;
    drop.all_keys = keys;
    return {seen, drop};
  }
};

/// [batch, heads, queries] -> [queries, batch, heads, 1]
Tensor per_query(const Tensor& x) {
  return x.permute({2, 0, 1}).unsqueeze(-1);
}

/// exp(part - whole), 0 where neither has seen a key.
Tensor share(const Tensor& part, const Tensor& whole) {
  constexpr double kNone = -std::numeric_limits<double>::infinity();
  return (part - whole.masked_fill(whole.eq(kNone), 0)).exp();
}

/// A tensor on its way to the next rank, while the one of the rank before comes.
struct Passing {
  mh::Pending sent, received;

  Tensor wait() {
    const Tensor incoming = received.wait();
    (void)sent.wait();
    return incoming;
  }
};

/// One of two neighbours sends first and the other receives first, for transports that match
/// operations in their order.
Passing pass_on(const Tensor& outgoing, const mh::Group& group) {
  const int64_t n = group.size();
  const int64_t next = (group.index() + 1) % n, before = (group.index() + n - 1) % n;
  const Tensor incoming = at::empty_like(outgoing);
  Passing passing;
  if (group.index() % 2 == 0) {
    passing.sent = group.send(outgoing, next);
    passing.received = group.receive(incoming, before);
  } else {
    passing.received = group.receive(incoming, before);
    passing.sent = group.send(outgoing, next);
  }
  return passing;
}

/// Keys and values of one piece, where it begins in what is visiting, and what is seen of it.
struct Visit {
  Tensor keys, values;
  int64_t begin;
  mh::ops::KernelMask mask;
  mh::ops::KernelDropout dropout;
};

/// Lets keys and values ([2, keys, batch, kv_heads, dim]) visit all ranks: `see` is called with
/// each piece that some query here may see, `leave` before those of the next rank come.
template <class See, class Leave>
void go_round(const RingCall& call, Tensor visiting, const See& see, const Leave& leave) {
  for (int64_t step = 0; step < call.ranks(); ++step) {
    const bool last = step + 1 == call.ranks();
    auto next = last ? Passing{} : pass_on(visiting, *call.group);
    int64_t begin = 0;
    for (const TokenRun& run : call.pieces(call.owner(step))) {
      auto [mask, dropout] = call.of(run);
      see(Visit{
          visiting[0].narrow(0, begin, run.count),
          visiting[1].narrow(0, begin, run.count),
          begin,
          std::move(mask),
          dropout});
      begin += run.count;
    }
    leave();
    if (!last) {
      visiting = next.wait();
    }
  }
}

struct Ring : torch::autograd::Function<Ring> {
  struct Saved {
    std::shared_ptr<const RingCall> call;
  };

  static Tensor forward(
      AutogradContext* ctx,
      const Tensor& q,
      const Tensor& k,
      const Tensor& v,
      const std::optional<Tensor>& bias,  // the mask's
      const std::optional<Tensor>& sinks, // the mask's
      const std::shared_ptr<const RingCall>& call
  ) {
    const auto type = q.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
    Tensor out = at::zeros(q.sizes(), q.options().dtype(type));
    Tensor lse = at::full(
        {q.size(1), q.size(2), q.size(0)}, -std::numeric_limits<double>::infinity(), out.options()
    );
    const auto merge = [&](const Visit& visit) {
      const auto [part, part_lse] =
          mh::ops::attention(q, visit.keys, visit.values, call->scale, visit.mask, visit.dropout);
      const Tensor both = at::logaddexp(lse, part_lse);
      out.mul_(per_query(share(lse, both))).add_(part.to(type) * per_query(share(part_lse, both)));
      lse = both;
    };
    go_round(*call, at::stack({k, v}), merge, [] {});
    if (sinks) {
      lse = mh::ops::join_sinks_(out, lse, *sinks);
    }
    out = out.to(q.scalar_type());
    ctx->save_for_backward({q, k, v, out, lse, bias.value_or(Tensor()), sinks.value_or(Tensor())});
    mh::save(ctx, Saved{call});
    return out;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    const auto saved = ctx->get_saved_variables();
    const auto& call = mh::get_saved<Saved>(ctx).call;
    const Tensor &q = saved[0], &out = saved[3], &lse = saved[4];
    Tensor dq = at::zeros(q.sizes(), lse.options());
    const Tensor visiting = at::stack({saved[1], saved[2]});
    Tensor gradient = at::zeros(visiting.sizes(), lse.options()); // gradient of what is visiting
    const Tensor& bias = saved[5];
    const Tensor dbias = bias.defined() ? at::zeros(bias.sizes(), bias.options()) : Tensor();
    const auto differentiate = [&](const Visit& visit) {
      const auto [dq_part, dk, dv, dbias_part] = mh::ops::attention_backward(
          gradients[0],
          q,
          visit.keys,
          visit.values,
          out,
          lse,
          call->scale,
          visit.mask,
          visit.dropout
      );
      dq.add_(dq_part);
      if (dbias.defined()) {
        dbias.add_(dbias_part);
      }
      gradient[0].narrow(0, visit.begin, dk.size(0)).add_(dk);
      gradient[1].narrow(0, visit.begin, dv.size(0)).add_(dv);
    };
    go_round(*call, visiting, differentiate, [&] {
      if (call->ranks() > 1) { // else it is at home
        gradient = pass_on(gradient, *call->group).wait();
      }
    });
    const auto type = q.scalar_type();
    const Tensor& sinks = saved[6];
    const Tensor dsinks =
        sinks.defined() ? mh::ops::sinks_backward(gradients[0], out, lse, sinks) : Tensor();
    return {dq.to(type), gradient[0].to(type), gradient[1].to(type), dbias, dsinks, Tensor()};
  }
};

class RingAttention : public mh::AttentionMethod {
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
    auto call = std::make_shared<RingCall>();
    call->group = &context.mesh().group(MeshAxis::cp);
    call->scale = scale;
    call->mask = mask;
    call->mask.sinks.reset();
    call->dropout = dropout;
    call->segments = all_segments(mask.key_segments, context);
    call->queries = call->ranks() * q.size(0);
    call->keys = call->ranks() * k.size(0);
    call->pairs = pairs_of_rank(q, k, mask, context) / static_cast<double>(call->visits());
    return Ring::apply(
        q, k, v, mask.bias, mask.sinks, std::shared_ptr<const RingCall>(std::move(call))
    );
  }
};

} // namespace

std::unique_ptr<const mh::AttentionMethod> make_ring() {
  return std::make_unique<RingAttention>();
}

} // namespace context_parallel
