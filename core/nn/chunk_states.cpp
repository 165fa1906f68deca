#include "megahost/nn/chunk_states.hpp"

#include "megahost/error.hpp"
#include "megahost/saved.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/eye.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

namespace mh {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// The runs of tokens of all ranks that split samples, by their order in the sample.
struct RunsOfRanks {
  const Group* group = nullptr; // null: one rank has whole samples
  std::vector<int64_t> own{};   // the place of each own run
  std::vector<int64_t> order{}; // the place of each run of all ranks, one rank after the other
};

RunsOfRanks runs_of_ranks(const StepContext& context) {
  RunsOfRanks runs{.own = {0}};
  for (const Rule& rule : context.rules().tokens) {
    const Group& group = context.mesh().group(rule.mesh);
    if (rule.logical != axis::seq || group.size() == 1) {
      continue;
    }
    MH_ASSERT(runs.group == nullptr, "at most one mesh axis splits the tokens of arrays");
    std::vector<int64_t> first; // token of each run
    size_t own = 0, count = 0;
    for (int64_t rank = 0; rank < group.size(); ++rank) {
      own = rank == group.index() ? first.size() : own;
      for (const TokenRun& run : sharded_runs(rule.sharding, context.seq(), group.size(), rank)) {
        first.push_back(run.first);
      }
      count = rank == group.index() ? first.size() - own : count;
    }
    for (const int64_t token : first) {
      runs.order.push_back(std::count_if(first.begin(), first.end(), [token](int64_t other) {
        return other < token;
      }));
    }
    const auto begin = runs.order.begin() + static_cast<std::ptrdiff_t>(own);
    runs.own.assign(begin, begin + static_cast<std::ptrdiff_t>(count));
    runs.group = &group;
  }
  return runs;
}

/// A decay with dimensions of size 1 behind its own, as many as the state has.
at::Tensor widened_to(at::Tensor decay, const at::Tensor& state) {
  while (decay.dim() < state.dim()) {
    decay = decay.unsqueeze(-1);
  }
  return decay;
}

/// Chunks multiply a state with numbers, one for each element of its first dimensions, or with
/// matrices, from the left, over its last two.
enum class Factors : uint8_t { numbers, matrices };

/// How states follow from each other.
struct StatePassing {
  Factors kind;
  bool at_once; // numbers: in operations over all chunks, for devices whose time is in launches
};

/// The state times a chunk's factor; `back`: times the transposed one, as gradients are.
at::Tensor times(Factors kind, const at::Tensor& factor, const at::Tensor& state, bool back) {
  return kind == Factors::numbers ? state * widened_to(factor, state)
                                  : at::matmul(back ? factor.mT() : factor, state);
}

/// The states before each chunk of one run and behind the last, from `h` on; `back`: behind each and
/// before the first. Each doubling lets a state know of twice as many chunks before it.
at::Tensor states_at_once(
    const at::Tensor& factors, const at::Tensor& updates, const at::Tensor& h, bool back
) {
  const auto in_order = [back](const at::Tensor& x) { return back ? x.flip(0) : x; };
  at::Tensor states = at::cat({h.unsqueeze(0), in_order(updates)});
  const at::Tensor passed = at::cat({at::ones_like(factors.narrow(0, 0, 1)), in_order(factors)});
  at::Tensor reach = widened_to(passed, states);
  for (int64_t step = 1; step < states.size(0); step *= 2) {
    const int64_t rest = states.size(0) - step;
    const at::Tensor later = reach.narrow(0, step, rest);
    states.narrow(0, step, rest).add_(later * states.narrow(0, 0, rest));
    later.copy_(later * reach.narrow(0, 0, rest));
  }
  return in_order(states);
}

/// The state behind the chunks of one run, from `h` before them; `back`: from the last chunk to the
/// first. The states before each chunk go to `ret_states`, if that is defined; an update that is
/// not defined adds nothing.
at::Tensor follow(
    const StatePassing& how,
    const at::Tensor& factors,
    const at::Tensor& updates,
    const at::Tensor& h,
    bool back,
    const at::Tensor& ret_states = {}
) {
  const int64_t chunks = factors.size(0);
  if (how.at_once && how.kind == Factors::numbers) {
    const at::Tensor states = states_at_once(factors, updates, h, back);
    if (ret_states.defined()) {
      ret_states.copy_(states.narrow(0, back ? 1 : 0, chunks));
    }
    return states[back ? 0 : chunks];
  }
  at::Tensor state = h;
  for (int64_t i = 0; i < chunks; ++i) {
    const int64_t chunk = back ? chunks - 1 - i : i;
    if (ret_states.defined()) {
      ret_states[chunk].copy_(state);
    }
    state = times(how.kind, factors[chunk], state, back);
    if (updates.defined()) {
      state.add_(updates[chunk]);
    }
  }
  return state;
}

/// The factor of all chunks of a run together.
at::Tensor product_of(const StatePassing& how, const at::Tensor& factors, bool back) {
  if (how.kind == Factors::numbers) {
    return factors.prod(0);
  }
  const at::Tensor one = at::eye(factors.size(-1), factors.options());
  return follow(how, factors, {}, one.expand_as(factors[0]), back);
}

/// The state with which each own run begins: what follows from the runs before it, or behind it.
std::vector<at::Tensor> first_states(
    const StatePassing& how,
    const std::vector<at::Tensor>& factors,
    const std::vector<at::Tensor>& updates,
    const RunsOfRanks& runs,
    bool back
) {
  const at::Tensor zeros = at::zeros_like(updates.front()[0]);
  std::vector<at::Tensor> sent; // a row for each run: the product of its factors, its last state
  for (size_t run = 0; run < updates.size(); ++run) {
    const at::Tensor end = follow(how, factors[run], updates[run], zeros, back);
    const at::Tensor product = product_of(how, factors[run], back);
    sent.push_back(at::cat({product.flatten(), end.flatten()}));
  }
  const at::Tensor rows = runs.group->all_gather(at::stack(sent), 0);
  std::vector<at::Tensor> ordered(runs.order.size());
  for (size_t run = 0; run < runs.order.size(); ++run) {
    ordered[static_cast<size_t>(runs.order[run])] = rows[static_cast<int64_t>(run)];
  }
  const at::Tensor one = factors.front()[0];
  std::vector<at::Tensor> first(updates.size());
  at::Tensor state = zeros;
  for (size_t place = 0; place < ordered.size(); ++place) {
    const size_t in_order = back ? ordered.size() - 1 - place : place;
    for (size_t run = 0; run < first.size(); ++run) {
      if (runs.own[run] == static_cast<int64_t>(in_order)) {
        first[run] = state;
      }
    }
    const auto parts = ordered[in_order].split_with_sizes({one.numel(), zeros.numel()});
    // A product that was made from behind is transposed already.
    state = times(how.kind, parts[0].view(one.sizes()), state, /*back=*/false) +
            parts[1].view(zeros.sizes());
  }
  return first;
}

/// The states before each chunk of this rank, from zeros at the sample's beginning; `back`: the same
/// from its end to its beginning.
at::Tensor all_states(
    const StatePassing& how,
    const at::Tensor& factors,
    const at::Tensor& updates,
    const RunsOfRanks& runs,
    bool back
) {
  at::Tensor states = at::empty_like(updates, at::MemoryFormat::Contiguous);
  if (runs.group == nullptr) {
    (void)follow(how, factors, updates, at::zeros_like(updates[0]), back, states);
    return states;
  }
  const auto count = static_cast<int64_t>(runs.own.size());
  const auto factors_of = factors.chunk(count, 0), updates_of = updates.chunk(count, 0);
  const auto states_of = states.chunk(count, 0);
  const auto first = first_states(how, factors_of, updates_of, runs, back);
  for (size_t run = 0; run < first.size(); ++run) {
    (void)follow(how, factors_of[run], updates_of[run], first[run], back, states_of[run]);
  }
  return states;
}

/// Backward, the gradient of the state behind a chunk follows from those of later chunks by the same
/// recurrence: g = factorᵀ g + (gradient of the state before the chunk).
struct StatesBefore : torch::autograd::Function<StatesBefore> {
  struct Saved {
    StatePassing how;
    RunsOfRanks runs;
  };

  static at::Tensor forward(
      AutogradContext* ctx,
      const StatePassing& how,
      const at::Tensor& factors,
      const at::Tensor& updates,
      const RunsOfRanks& runs
  ) {
    at::Tensor states = all_states(how, factors, updates, runs, /*back=*/false);
    ctx->save_for_backward({factors, states});
    save(ctx, Saved{how, runs});
    return states;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    const auto saved = ctx->get_saved_variables();
    const at::Tensor &factors = saved[0], &states = saved[1];
    const auto& [how, runs] = get_saved<Saved>(ctx);
    const at::Tensor behind = all_states(how, factors, gradients[0], runs, /*back=*/true);
    if (how.kind == Factors::matrices) {
      return {at::Tensor(), at::matmul(behind, states.mT()), behind, at::Tensor()};
    }
    if (how.at_once) {
      const at::Tensor product = (behind * states).unsqueeze(-1).flatten(factors.dim());
      return {at::Tensor(), product.sum(-1), behind, at::Tensor()};
    }
    at::Tensor of_factors = at::empty_like(factors, at::MemoryFormat::Contiguous);
    for (int64_t chunk = 0; chunk < factors.size(0); ++chunk) {
      const at::Tensor product = behind[chunk] * states[chunk];
      of_factors[chunk].copy_(product.unsqueeze(-1).flatten(factors.dim() - 1).sum(-1));
    }
    return {at::Tensor(), of_factors, behind, at::Tensor()};
  }
};

/// The states before each chunk, and in generation the one that is kept.
at::Tensor states_before(
    Factors kind,
    const at::Tensor& factors,
    const at::Tensor& updates,
    const CachedState& cached,
    StepContext& context
) {
  if (context.mode().tokens_apart) {
    return at::zeros_like(updates);
  }
  const StatePassing how{.kind = kind, .at_once = context.mode().target != at::kCPU};
  if (context.mode().kv_cache == nullptr) {
    const RunsOfRanks runs = runs_of_ranks(context);
    MH_ASSERT(
        updates.size(0) % static_cast<int64_t>(runs.own.size()) == 0,
        "each run of tokens has as many chunks"
    );
    return StatesBefore::apply(how, factors, updates, runs);
  }
  const at::NoGradGuard no_grad; // one rank
  const at::Tensor initial = cached.before(context);
  at::Tensor states = at::empty_like(updates, at::MemoryFormat::Contiguous);
  cached.keep(follow(how, factors, updates, initial, /*back=*/false, states), context);
  return states;
}

} // namespace

ChunkStates::ChunkStates(Builder& builder, std::string_view name, const Dims& dims)
    : cached_(builder, name, dims) {}

at::Tensor ChunkStates::before(
    const at::Tensor& decays, const at::Tensor& updates, StepContext& context
) const {
  return states_before(Factors::numbers, decays, updates, cached_, context);
}

at::Tensor ChunkStates::before_with_matrices(
    const at::Tensor& transitions, const at::Tensor& updates, StepContext& context
) const {
  return states_before(Factors::matrices, transitions, updates, cached_, context);
}

} // namespace mh
