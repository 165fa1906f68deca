#include "delta_cpu.hpp"

#include "chunk_cpu.hpp"
#include "delta_kernels.hpp"

#include <megahost/error.hpp>
#include <megahost/saved.hpp>

#include <ATen/ops/baddbmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <cmath>
#include <optional>

MH_CHUNK_KERNELS(DeltaKernels, delta_kernels)

namespace mh::hybrid {

namespace {

using kernels::DeltaCall;
using kernels::DeltaKernels;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

bool products_in_bf16(const DeltaInputs& in) {
  return in.v.scalar_type() == at::kBFloat16 && multiplies_bf16() && whole_tiles(in.k) &&
         whole_tiles(in.v);
}

const DeltaKernels& kernels_for(const DeltaInputs& in) {
  const auto& table = best_delta_kernels();
  if (in.v.scalar_type() == at::kFloat) {
    return table.fp32;
  }
  return products_in_bf16(in) ? table.bf16 : table.mixed;
}

at::Tensor empty_gradient(const at::Tensor& x) {
  return at::empty_like(x, at::MemoryFormat::Contiguous);
}

/// A call, with the tensors that its kernels read.
class DeltaRun {
public:
  DeltaRun(const DeltaInputs& in, const std::vector<TokenRun>& chunks)
      : kernels_(kernels_for(in))
      , type_(products_in_bf16(in) ? at::kBFloat16 : at::kFloat)
      , q_(whole_rows(in.q))
      , k_(whole_rows(in.k))
      , v_(whole_rows(in.v))
      , beta_(in.beta.contiguous())
      , log_decay_(in.log_decay.contiguous())
      , starts_(in.starts.defined() ? in.starts.contiguous() : in.starts)
      , tasks_(chunks) {
    numbers = {
        .batch = v_.size(1),
        .heads = v_.size(2),
        .groups = k_.size(2),
        .key_dim = k_.size(3),
        .dim = v_.size(3),
        .longest = tasks_.longest(),
        .count = tasks_.count(),
        .chunks = tasks_.rows(),
        .q = strided(q_),
        .k = strided(k_),
        .v = strided(v_),
        .beta = data_of<const float>(beta_),
        .log_decay = data_of<const float>(log_decay_),
        .starts = starts_.defined() ? data_of<const bool>(starts_) : nullptr,
        .query_scale = static_cast<float>(1 / std::sqrt(static_cast<double>(k_.size(3)))),
        .length_eps = static_cast<float>(kLengthEps)};
  }

  /// Runs a kernel over chunks; `count` as of ChunkTasks.
  template <class Count>
  void run(kernels::ChunkKernel<DeltaCall> DeltaKernels::*kernel, const Count& count) {
    const int64_t tasks = tasks_.count() * numbers.batch * numbers.groups;
    tasks_.run(kernels_, kernel, numbers, v_, tasks, count);
  }

  /// Runs a kernel over heads, each of which passes through its chunks.
  template <class Count>
  void run_heads(kernels::ChunkKernel<DeltaCall> DeltaKernels::*kernel, const Count& count) {
    tasks_.run(kernels_, kernel, numbers, v_, numbers.batch * numbers.heads, count);
  }

  void product(int64_t m, int64_t n, int64_t k) const {
    tasks_.product(numbers.batch * numbers.heads, m, n, k);
  }

  void product_of_groups(int64_t m, int64_t n, int64_t k) const {
    tasks_.product(numbers.batch * numbers.groups, m, n, k);
  }

  /// A matrix of each chunk and head, in the type of products.
  [[nodiscard]] at::Tensor matrices(int64_t rows, int64_t columns) const {
    return matrices(rows, columns, type_);
  }

  [[nodiscard]] at::Tensor matrices(int64_t rows, int64_t columns, at::ScalarType type) const {
    return at::empty(
        {tasks_.count(), numbers.batch, numbers.heads, rows, columns}, v_.options().dtype(type)
    );
  }

  DeltaCall numbers{};
  bool wants_transitions = false;

private:
  const DeltaKernels& kernels_;
  at::ScalarType type_;
  at::Tensor q_, k_, v_, beta_, log_decay_, starts_;
  ChunkTasks tasks_;
};

struct SavedChunks {
  std::vector<TokenRun> chunks;
  at::DeviceType target;
};

/// Makes -w and u of all chunks, and the inverse matrices; with transitions and updates if the call
/// has them.
void solve(DeltaRun& call, const at::Tensor& solved, const at::Tensor& inverse) {
  call.numbers.solved = data_of<void>(solved);
  call.numbers.inverse = data_of<void>(inverse);
  call.run(&DeltaKernels::solve, [&](int64_t rows) {
    const int64_t keys = call.numbers.key_dim, both = keys + call.numbers.dim;
    call.product_of_groups(rows, rows, keys);
    call.product(rows, both, rows);
    if (call.wants_transitions) {
      call.product(keys, both, rows);
    }
  });
}

/// Runs the backward pass of that, given its incoming gradients: those of k, v, beta, log_decay.
variable_list solve_backward(
    DeltaRun& call, const DeltaInputs& in, const at::Tensor& solved, const at::Tensor& inverse
) {
  variable_list made{
      empty_gradient(in.k),
      empty_gradient(in.v),
      empty_gradient(in.beta),
      empty_gradient(in.log_decay)};
  call.numbers.solved = data_of<void>(solved);
  call.numbers.inverse = data_of<void>(inverse);
  call.numbers.dk = data_of<void>(made[0]);
  call.numbers.dv = data_of<void>(made[1]);
  call.numbers.dbeta = floats(made[2]);
  call.numbers.dlog_decay = floats(made[3]);
  call.run(&DeltaKernels::solve_backward, [&](int64_t rows) {
    const int64_t keys = call.numbers.key_dim, dim = call.numbers.dim, both = keys + dim;
    call.product_of_groups(rows, rows, keys);
    call.product(rows, call.wants_transitions ? both : dim, keys);
    call.product(rows, keys, call.wants_transitions ? both : dim);
    call.product(rows, both, rows);
    call.product(rows, rows, both);
    call.product_of_groups(rows, keys, rows);
  });
  return made;
}

/// Given k, v, beta and decays: -w and u side by side, transitions and updates.
struct CpuSolve : torch::autograd::Function<CpuSolve> {
  static variable_list forward(
      AutogradContext* ctx,
      const at::Tensor& k,
      const at::Tensor& v,
      const at::Tensor& beta,
      const at::Tensor& log_decay,
      const std::optional<at::Tensor>& starts,
      at::DeviceType target,
      const std::vector<TokenRun>& chunks
  ) {
    const DeltaInputs in{k, k, v, beta, log_decay, starts.value_or(at::Tensor()), target};
    DeltaRun call(in, chunks);
    const int64_t keys = k.size(3), dim = v.size(3), longest = call.numbers.longest;
    const at::Tensor solved = call.matrices(longest, keys + dim);
    const at::Tensor inverse = call.matrices(longest, longest);
    const at::Tensor transitions = call.matrices(keys, keys, at::kFloat);
    const at::Tensor updates = call.matrices(keys, dim, at::kFloat);
    call.wants_transitions = true;
    call.numbers.transitions = floats(transitions);
    call.numbers.updates = floats(updates);
    solve(call, solved, inverse);
    ctx->save_for_backward({k, v, beta, log_decay, in.starts, solved, inverse});
    save(ctx, SavedChunks{chunks, target});
    return {solved, transitions, updates};
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    const auto saved = ctx->get_saved_variables();
    const auto& [chunks, target] = get_saved<SavedChunks>(ctx);
    const DeltaInputs in{saved[0], saved[0], saved[1], saved[2], saved[3], saved[4], target};
    DeltaRun call(in, chunks);
    const at::Tensor dsolved = gradients[0].contiguous();
    const at::Tensor dtransitions = gradients[1].contiguous(), dupdates = gradients[2].contiguous();
    call.wants_transitions = true;
    call.numbers.dsolved = data_of<void>(dsolved);
    call.numbers.dtransitions = floats(dtransitions);
    call.numbers.dupdates = floats(dupdates);
    auto made = solve_backward(call, in, saved[5], saved[6]);
    made.resize(7);
    return made;
  }
};

/// Given the same: the states before chunks, from zeros on, and what tokens write to them.
struct CpuStates : torch::autograd::Function<CpuStates> {
  static variable_list forward(
      AutogradContext* ctx,
      const at::Tensor& k,
      const at::Tensor& v,
      const at::Tensor& beta,
      const at::Tensor& log_decay,
      const std::optional<at::Tensor>& starts,
      at::DeviceType target,
      const std::vector<TokenRun>& chunks
  ) {
    const DeltaInputs in{k, k, v, beta, log_decay, starts.value_or(at::Tensor()), target};
    DeltaRun call(in, chunks);
    const int64_t keys = k.size(3), dim = v.size(3), longest = call.numbers.longest;
    const at::Tensor solved = call.matrices(longest, keys + dim);
    const at::Tensor inverse = call.matrices(longest, longest);
    solve(call, solved, inverse);
    const at::Tensor states = call.matrices(keys, dim), writes = call.matrices(longest, dim);
    call.numbers.states = data_of<void>(states);
    call.numbers.writes = data_of<void>(writes);
    call.run_heads(&DeltaKernels::pass, [&](int64_t rows) {
      call.product(rows, dim, keys);
      call.product(keys, dim, rows);
    });
    ctx->save_for_backward({k, v, beta, log_decay, in.starts, solved, inverse, states, writes});
    save(ctx, SavedChunks{chunks, target});
    return {states, writes};
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    const auto saved = ctx->get_saved_variables();
    const auto& [chunks, target] = get_saved<SavedChunks>(ctx);
    const DeltaInputs in{saved[0], saved[0], saved[1], saved[2], saved[3], saved[4], target};
    DeltaRun call(in, chunks);
    const int64_t keys = in.k.size(3), dim = in.v.size(3);
    const at::Tensor dstates = gradients[0].contiguous(), dwrites = gradients[1].contiguous();
    const at::Tensor behind = call.matrices(keys, dim);
    const at::Tensor du = call.matrices(call.numbers.longest, dim);
    call.numbers.solved = data_of<void>(saved[5]);
    call.numbers.states = data_of<void>(saved[7]);
    call.numbers.writes = data_of<void>(saved[8]);
    call.numbers.dstates = data_of<void>(dstates);
    call.numbers.dwrites = data_of<void>(dwrites);
    call.numbers.behind = data_of<void>(behind);
    call.numbers.du = data_of<void>(du);
    call.run_heads(&DeltaKernels::pass_backward, [&](int64_t rows) {
      call.product(rows, dim, keys);
      call.product(keys, dim, rows);
    });
    auto made = solve_backward(call, in, saved[5], saved[6]);
    made.resize(7);
    return made;
  }
};

/// Computes what tokens read, given the states before their chunks and what is written to these.
struct CpuOutputs : torch::autograd::Function<CpuOutputs> {
  static at::Tensor forward(
      AutogradContext* ctx,
      const at::Tensor& q,
      const at::Tensor& k,
      const at::Tensor& v, // for its sizes
      const at::Tensor& log_decay,
      const std::optional<at::Tensor>& starts,
      const at::Tensor& states,
      const at::Tensor& writes,
      at::DeviceType target,
      const std::vector<TokenRun>& chunks
  ) {
    const DeltaInputs in{q, k, v, log_decay, log_decay, starts.value_or(at::Tensor()), target};
    DeltaRun call(in, chunks);
    MH_ASSERT(states.is_contiguous() && writes.is_contiguous(), "kernels read whole tensors");
    at::Tensor y = at::empty(v.sizes(), log_decay.options());
    call.numbers.states = data_of<void>(states);
    call.numbers.writes = data_of<void>(writes);
    call.numbers.y = floats(y);
    const int64_t keys = k.size(3), dim = v.size(3);
    call.run(&DeltaKernels::outputs, [&](int64_t rows) {
      call.product_of_groups(rows, rows, keys);
      call.product(rows, dim, rows);
      call.product(rows, dim, keys);
    });
    ctx->save_for_backward({q, k, v, log_decay, in.starts, states, writes});
    save(ctx, SavedChunks{chunks, target});
    return y;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    const auto saved = ctx->get_saved_variables();
    const auto& [chunks, target] = get_saved<SavedChunks>(ctx);
    const at::Tensor &q = saved[0], &k = saved[1], &v = saved[2], &log_decay = saved[3];
    const at::Tensor &states = saved[5], &writes = saved[6];
    const DeltaInputs in{q, k, v, log_decay, log_decay, saved[4], target};
    DeltaRun call(in, chunks);
    const at::Tensor dy = gradients[0].contiguous();
    const at::Tensor dq = empty_gradient(q), dk = empty_gradient(k);
    const at::Tensor dlog_decay = empty_gradient(log_decay);
    at::Tensor dstates = empty_gradient(states), dwrites = empty_gradient(writes);
    call.numbers.states = data_of<void>(states);
    call.numbers.writes = data_of<void>(writes);
    call.numbers.dy = floats(dy);
    call.numbers.dq = data_of<void>(dq);
    call.numbers.dk = data_of<void>(dk);
    call.numbers.dlog_decay = floats(dlog_decay);
    call.numbers.dstates = data_of<void>(dstates);
    call.numbers.dwrites = data_of<void>(dwrites);
    const int64_t keys = k.size(3), dim = v.size(3);
    call.run(&DeltaKernels::outputs_backward, [&](int64_t rows) {
      call.product_of_groups(rows, rows, keys);
      call.product(rows, rows, dim);
      call.product(rows, dim, rows);
      call.product(keys, dim, rows);
      call.product(rows, keys, dim);
      call.product_of_groups(rows, keys, rows);
      call.product_of_groups(rows, keys, rows);
    });
    const at::Tensor none;
    return {dq, dk, none, dlog_decay, none, dstates, dwrites, none, none};
  }
};

at::Tensor outputs_of(
    const DeltaInputs& in,
    const at::Tensor& states,
    const at::Tensor& writes,
    const std::vector<TokenRun>& rows
) {
  return CpuOutputs::apply(
      in.q, in.k, in.v, in.log_decay, if_defined(in.starts), states, writes, in.target, rows
  );
}

} // namespace

bool fits_cpu_delta(const DeltaInputs& in) {
  const auto type = in.v.scalar_type();
  const bool here = in.v.is_cpu() || (in.v.is_meta() && in.target == at::kCPU);
  return here && (type == at::kFloat || type == at::kBFloat16) &&
         in.beta.scalar_type() == at::kFloat && in.log_decay.scalar_type() == at::kFloat &&
         in.q.scalar_type() == type && in.k.scalar_type() == type && in.v.numel() > 0 &&
         in.k.numel() > 0;
}

at::Tensor cpu_delta_rule(const DeltaInputs& in, const std::vector<TokenRun>& rows) {
  const auto made =
      CpuStates::apply(in.k, in.v, in.beta, in.log_decay, if_defined(in.starts), in.target, rows);
  return outputs_of(in, made[0], made[1], rows);
}

DeltaChunks cpu_delta_chunks(const DeltaInputs& in, const std::vector<TokenRun>& rows) {
  const auto solved =
      CpuSolve::apply(in.k, in.v, in.beta, in.log_decay, if_defined(in.starts), in.target, rows);
  DeltaChunks made;
  made.in = in;
  made.solved = solved[0];
  made.transitions = solved[1];
  made.updates = solved[2];
  return made;
}

at::Tensor cpu_delta_outputs(
    const DeltaChunks& of, const at::Tensor& states, const std::vector<TokenRun>& rows
) {
  const int64_t keys = of.in.k.size(3), dim = of.in.v.size(3);
  const at::Tensor solved = of.solved.flatten(0, 2);
  const at::Tensor before = states.to(solved.scalar_type()).contiguous();
  const at::Tensor writes =
      at::baddbmm(solved.narrow(2, keys, dim), solved.narrow(2, 0, keys), before.flatten(0, 2));
  return outputs_of(of.in, before, writes, rows);
}

} // namespace mh::hybrid
