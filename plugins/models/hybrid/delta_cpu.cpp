#include "delta_cpu.hpp"

#include "chunk_cpu.hpp"
#include "delta_kernels.hpp"

#include <megahost/error.hpp>
#include <megahost/saved.hpp>

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

  /// Runs a kernel; `count` as of ChunkTasks.
  template <class Count>
  void run(kernels::ChunkKernel<DeltaCall> DeltaKernels::*kernel, const Count& count) {
    tasks_.run(kernels_, kernel, numbers, v_, count);
  }

  void product(int64_t m, int64_t n, int64_t k) const {
    tasks_.product(numbers.batch * numbers.heads, m, n, k);
  }

  void product_of_groups(int64_t m, int64_t n, int64_t k) const {
    tasks_.product(numbers.batch * numbers.groups, m, n, k);
  }

  /// Sizes of a matrix of each chunk and head.
  [[nodiscard]] std::vector<int64_t>
  sizes(const std::vector<TokenRun>& chunks, int64_t rows, int64_t columns) const {
    return {static_cast<int64_t>(chunks.size()), numbers.batch, numbers.heads, rows, columns};
  }

  DeltaCall numbers{};

private:
  const DeltaKernels& kernels_;
  at::Tensor q_, k_, v_, beta_, log_decay_, starts_;
  ChunkTasks tasks_;
};

/// Given k, v, beta and decays: -w and u side by side, transitions and updates.
struct CpuSolve : torch::autograd::Function<CpuSolve> {
  struct Saved {
    std::vector<TokenRun> chunks;
    at::DeviceType target;
  };

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
    const auto multiplied = v.options().dtype(products_in_bf16(in) ? at::kBFloat16 : at::kFloat);
    const at::Tensor solved = at::empty(call.sizes(chunks, longest, keys + dim), multiplied);
    const at::Tensor inverse = at::empty(call.sizes(chunks, longest, longest), multiplied);
    const at::Tensor transitions = at::empty(call.sizes(chunks, keys, keys), beta.options());
    const at::Tensor updates = at::empty(call.sizes(chunks, keys, dim), beta.options());
    call.numbers.solved = data_of<void>(solved);
    call.numbers.inverse = data_of<void>(inverse);
    call.numbers.transitions = floats(transitions);
    call.numbers.updates = floats(updates);
    call.run(&DeltaKernels::solve, [&](int64_t rows) {
      call.product_of_groups(rows, rows, keys);
      call.product(rows, keys + dim, rows);
      call.product(keys, keys + dim, rows);
    });
    ctx->save_for_backward({k, v, beta, log_decay, in.starts, solved, inverse});
    save(ctx, Saved{chunks, target});
    return {solved, transitions, updates};
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    const auto saved = ctx->get_saved_variables();
    const auto& [chunks, target] = get_saved<Saved>(ctx);
    const at::Tensor &k = saved[0], &v = saved[1], &beta = saved[2], &log_decay = saved[3];
    const DeltaInputs in{k, k, v, beta, log_decay, saved[4], target};
    DeltaRun call(in, chunks);
    const at::Tensor dsolved = gradients[0].contiguous();
    const at::Tensor dtransitions = gradients[1].contiguous(), dupdates = gradients[2].contiguous();
    const at::Tensor dk = empty_gradient(k), dv = empty_gradient(v);
    const at::Tensor dbeta = empty_gradient(beta), dlog_decay = empty_gradient(log_decay);
    call.numbers.solved = data_of<void>(saved[5]);
    call.numbers.inverse = data_of<void>(saved[6]);
    call.numbers.dsolved = data_of<void>(dsolved);
    call.numbers.dtransitions = floats(dtransitions);
    call.numbers.dupdates = floats(dupdates);
    call.numbers.dk = data_of<void>(dk);
    call.numbers.dv = data_of<void>(dv);
    call.numbers.dbeta = floats(dbeta);
    call.numbers.dlog_decay = floats(dlog_decay);
    const int64_t keys = k.size(3), both = keys + v.size(3);
    call.run(&DeltaKernels::solve_backward, [&](int64_t rows) {
      call.product_of_groups(rows, rows, keys);
      call.product(rows, both, keys);
      call.product(rows, keys, both);
      call.product(rows, both, rows);
      call.product(rows, rows, both);
      call.product_of_groups(rows, keys, rows);
    });
    const at::Tensor none;
    return {dk, dv, dbeta, dlog_decay, none, none, none};
  }
};

/// Computes what tokens read, given the states before their chunks and what CpuSolve made.
struct CpuOutputs : torch::autograd::Function<CpuOutputs> {
  struct Saved {
    std::vector<TokenRun> chunks;
    at::DeviceType target;
  };

  static at::Tensor forward(
      AutogradContext* ctx,
      const at::Tensor& q,
      const at::Tensor& k,
      const at::Tensor& v, // for its sizes
      const at::Tensor& log_decay,
      const std::optional<at::Tensor>& starts,
      const at::Tensor& solved,
      const at::Tensor& given,
      at::DeviceType target,
      const std::vector<TokenRun>& chunks
  ) {
    const DeltaInputs in{q, k, v, log_decay, log_decay, starts.value_or(at::Tensor()), target};
    DeltaRun call(in, chunks);
    const at::Tensor states = given.contiguous();
    at::Tensor y = at::empty(v.sizes(), log_decay.options());
    call.numbers.solved = data_of<void>(solved);
    call.numbers.states = floats(states);
    call.numbers.y = floats(y);
    const int64_t keys = k.size(3), dim = v.size(3);
    call.run(&DeltaKernels::outputs, [&](int64_t rows) {
      call.product_of_groups(rows, rows, keys);
      call.product(rows, dim, keys);
      call.product(rows, dim, rows);
      call.product(rows, dim, keys);
    });
    ctx->save_for_backward({q, k, v, log_decay, in.starts, solved, states});
    save(ctx, Saved{chunks, target});
    return y;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    const auto saved = ctx->get_saved_variables();
    const auto& [chunks, target] = get_saved<Saved>(ctx);
    const at::Tensor &q = saved[0], &k = saved[1], &v = saved[2], &log_decay = saved[3];
    const at::Tensor &solved = saved[5], &states = saved[6];
    const DeltaInputs in{q, k, v, log_decay, log_decay, saved[4], target};
    DeltaRun call(in, chunks);
    const at::Tensor dy = gradients[0].contiguous();
    const at::Tensor dq = empty_gradient(q), dk = empty_gradient(k);
    const at::Tensor dlog_decay = empty_gradient(log_decay), dsolved = empty_gradient(solved);
    at::Tensor dstates = empty_gradient(states);
    call.numbers.solved = data_of<void>(solved);
    call.numbers.states = floats(states);
    call.numbers.dy = floats(dy);
    call.numbers.dq = data_of<void>(dq);
    call.numbers.dk = data_of<void>(dk);
    call.numbers.dlog_decay = floats(dlog_decay);
    call.numbers.dsolved = data_of<void>(dsolved);
    call.numbers.dstates = floats(dstates);
    const int64_t keys = k.size(3), dim = v.size(3);
    call.run(&DeltaKernels::outputs_backward, [&](int64_t rows) {
      call.product_of_groups(rows, rows, keys);
      call.product(rows, dim, keys);
      call.product(rows, rows, dim);
      call.product(rows, dim, rows);
      call.product(2 * rows, keys, dim);
      call.product(keys, dim, 2 * rows);
      call.product_of_groups(rows, keys, rows);
      call.product_of_groups(rows, keys, rows);
    });
    const at::Tensor none;
    return {dq, dk, none, dlog_decay, none, dsolved, dstates, none, none};
  }
};

} // namespace

bool fits_cpu_delta(const DeltaInputs& in) {
  const auto type = in.v.scalar_type();
  const bool here = in.v.is_cpu() || (in.v.is_meta() && in.target == at::kCPU);
  return here && (type == at::kFloat || type == at::kBFloat16) &&
         in.beta.scalar_type() == at::kFloat && in.log_decay.scalar_type() == at::kFloat &&
         in.q.scalar_type() == type && in.k.scalar_type() == type && in.v.numel() > 0 &&
         in.k.numel() > 0;
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
  const DeltaInputs& in = of.in;
  return CpuOutputs::apply(
      in.q, in.k, in.v, in.log_decay, if_defined(in.starts), of.solved, states, in.target, rows
  );
}

} // namespace mh::hybrid
