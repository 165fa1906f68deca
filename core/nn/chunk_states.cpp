#include "megahost/nn/chunk_states.hpp"

#include "megahost/error.hpp"
#include "megahost/saved.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
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

/// The state behind the chunks of one run, from `h` before them; `back`: from the last chunk to the
/// first. The states before each chunk go to `ret_states`, if that is defined.
at::Tensor follow(
    const at::Tensor& decays,
    const at::Tensor& updates,
    const at::Tensor& h,
    bool back,
    const at::Tensor& ret_states = {}
) {
  at::Tensor state = h.clone();
  const int64_t chunks = updates.size(0);
  for (int64_t i = 0; i < chunks; ++i) {
    const int64_t chunk = back ? chunks - 1 - i : i;
    if (ret_states.defined()) {
      ret_states[chunk].copy_(state);
    }
    state.mul_(widened_to(decays[chunk], state)).add_(updates[chunk]);
  }
  return state;
}

/// The state with which each own run begins: what follows from the runs before it, or behind it.
std::vector<at::Tensor> first_states(
    const std::vector<at::Tensor>& decays,
    const std::vector<at::Tensor>& updates,
    const RunsOfRanks& runs,
    bool back
) {
  const at::Tensor zeros = at::zeros_like(updates.front()[0]);
  std::vector<at::Tensor> sent; // a row for each run: the product of its decays, its last state
  for (size_t run = 0; run < updates.size(); ++run) {
    const at::Tensor end = follow(decays[run], updates[run], zeros, back);
    sent.push_back(at::cat({decays[run].prod(0).flatten(), end.flatten()}));
  }
  const at::Tensor rows = runs.group->all_gather(at::stack(sent), 0);
  std::vector<at::Tensor> ordered(runs.order.size());
  for (size_t run = 0; run < runs.order.size(); ++run) {
    ordered[static_cast<size_t>(runs.order[run])] = rows[static_cast<int64_t>(run)];
  }
  const at::Tensor one = decays.front()[0];
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
    state = state * widened_to(parts[0].view(one.sizes()), state) + parts[1].view(zeros.sizes());
  }
  return first;
}

/// The states before each chunk of this rank, from `initial` (or zeros) at the sample's beginning;
/// `back`: the same from its end to its beginning.
at::Tensor all_states(
    const at::Tensor& decays,
    const at::Tensor& updates,
    const at::Tensor& initial,
    const RunsOfRanks& runs,
    bool back
) {
  at::Tensor states = at::empty_like(updates, at::MemoryFormat::Contiguous);
  if (runs.group == nullptr) {
    (void)follow(
        decays, updates, initial.defined() ? initial : at::zeros_like(updates[0]), back, states
    );
    return states;
  }
  const auto count = static_cast<int64_t>(runs.own.size());
  const auto decays_of = decays.chunk(count, 0), updates_of = updates.chunk(count, 0);
  const auto states_of = states.chunk(count, 0);
  const auto first = first_states(decays_of, updates_of, runs, back);
  for (size_t run = 0; run < first.size(); ++run) {
    (void)follow(decays_of[run], updates_of[run], first[run], back, states_of[run]);
  }
  return states;
}

/// Backward, the gradient of the state behind a chunk follows from those of later chunks by the same
/// recurrence: g = decay * g + (gradient of the state before the chunk).
struct StatesBefore : torch::autograd::Function<StatesBefore> {
  struct Saved {
    RunsOfRanks runs;
  };

  static at::Tensor forward(
      AutogradContext* ctx,
      const at::Tensor& decays,
      const at::Tensor& updates,
      const std::optional<at::Tensor>& initial,
      const RunsOfRanks& runs
  ) {
    at::Tensor states =
        all_states(decays, updates, initial.value_or(at::Tensor()), runs, /*back=*/false);
    ctx->save_for_backward({decays, states});
    save(ctx, Saved{runs});
    return states;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    const auto saved = ctx->get_saved_variables();
    const at::Tensor &decays = saved[0], &states = saved[1];
    const at::Tensor behind =
        all_states(decays, gradients[0], {}, get_saved<Saved>(ctx).runs, /*back=*/true);
    at::Tensor of_decays = at::empty_like(decays, at::MemoryFormat::Contiguous);
    for (int64_t chunk = 0; chunk < decays.size(0); ++chunk) {
      const at::Tensor product = behind[chunk] * states[chunk];
      of_decays[chunk].copy_(product.unsqueeze(-1).flatten(decays.dim() - 1).sum(-1));
    }
    return {of_decays, behind, at::Tensor(), at::Tensor()};
  }
};

} // namespace

ChunkStates::ChunkStates(Builder& builder, std::string_view name, const Dims& dims)
    : cached_(builder, name, dims) {}

at::Tensor ChunkStates::before(
    const at::Tensor& decays, const at::Tensor& updates, StepContext& context
) const {
  if (context.mode().tokens_apart) {
    return at::zeros_like(updates);
  }
  if (context.mode().kv_cache == nullptr) {
    const RunsOfRanks runs = runs_of_ranks(context);
    MH_ASSERT(
        updates.size(0) % static_cast<int64_t>(runs.own.size()) == 0,
        "each run of tokens has as many chunks"
    );
    return StatesBefore::apply(decays, updates, std::optional<at::Tensor>(), runs);
  }
  const at::NoGradGuard no_grad; // one rank
  const at::Tensor initial = cached_.before(context);
  at::Tensor states = at::empty_like(updates, at::MemoryFormat::Contiguous);
  cached_.keep(follow(decays, updates, initial, /*back=*/false, states), context);
  return states;
}

} // namespace mh
