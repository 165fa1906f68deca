#include "scan_cpu.hpp"

#include "chunk_cpu.hpp"
#include "scan_kernels.hpp"

#include <megahost/error.hpp>

#include <vector>

MH_CHUNK_KERNELS(ScanKernels, scan_kernels)

namespace mh::hybrid {

namespace {

using kernels::ScanCall;
using kernels::ScanKernels;

const ScanKernels& kernels_for(const ScanInputs& in) {
  const auto& table = best_scan_kernels();
  if (in.x.scalar_type() == at::kFloat) {
    return table.fp32;
  }
  return multiplies_bf16() && whole_tiles(in.x) && whole_tiles(in.b) ? table.bf16 : table.mixed;
}

/// A call, with the tensors that its kernels read.
class ScanRun {
public:
  ScanRun(const ScanInputs& in, const std::vector<TokenRun>& chunks)
      : kernels_(kernels_for(in))
      , x_(whole_rows(in.x))
      , b_(whole_rows(in.b))
      , c_(whole_rows(in.c))
      , dt_(in.dt.contiguous())
      , log_decay_(in.log_decay.contiguous())
      , starts_(in.starts.defined() ? in.starts.contiguous() : in.starts)
      , tasks_(chunks) {
    numbers = {
        .batch = x_.size(1),
        .heads = x_.size(2),
        .groups = b_.size(2),
        .dim = x_.size(3),
        .state = b_.size(3),
        .longest = tasks_.longest(),
        .chunks = tasks_.rows(),
        .x = strided(x_),
        .b = strided(b_),
        .c = strided(c_),
        .dt = data_of<const float>(dt_),
        .log_decay = data_of<const float>(log_decay_),
        .starts = starts_.defined() ? data_of<const bool>(starts_) : nullptr};
  }

  /// Runs a kernel; `count` as of ChunkTasks.
  template <class Count>
  void run(kernels::ChunkKernel<ScanCall> ScanKernels::*kernel, const Count& count) {
    const int64_t tasks = tasks_.count() * numbers.batch * numbers.groups;
    tasks_.run(kernels_, kernel, numbers, x_, tasks, count);
  }

  /// Counts a GEMM of each head: what it multiplies is any number, so it takes no memory.
  void product(int64_t m, int64_t n, int64_t k) const {
    tasks_.product(numbers.batch * numbers.heads, m, n, k);
  }

  void product_of_groups(int64_t m, int64_t n, int64_t k) const {
    tasks_.product(numbers.batch * numbers.groups, m, n, k);
  }

  ScanCall numbers{};

private:
  const ScanKernels& kernels_;
  at::Tensor x_, b_, c_, dt_, log_decay_, starts_;
  ChunkTasks tasks_;
};

/// Sets where the gradients go that both backward kernels write.
void set_gradients(ScanCall& call, const ScanInputs& d) {
  MH_ASSERT(d.x.is_contiguous() && d.b.is_contiguous(), "gradients are whole tensors");
  call.dx = data_of<void>(d.x);
  call.db = data_of<void>(d.b);
  call.ddt = floats(d.dt);
  call.dlog_decay = floats(d.log_decay);
}

} // namespace

bool fits_cpu_scan(const ScanInputs& in) {
  const auto type = in.x.scalar_type();
  const bool here = in.x.is_cpu() || (in.x.is_meta() && in.target == at::kCPU);
  return here && (type == at::kFloat || type == at::kBFloat16) &&
         in.dt.scalar_type() == at::kFloat && in.b.scalar_type() == type &&
         in.c.scalar_type() == type && in.x.numel() > 0 && in.b.numel() > 0;
}

void cpu_updates(
    const ScanInputs& in,
    const std::vector<TokenRun>& chunks,
    const at::Tensor& decays,
    const at::Tensor& updates
) {
  ScanRun call(in, chunks);
  call.numbers.decays = floats(decays);
  call.numbers.updates = floats(updates);
  call.run(&ScanKernels::updates, [&](int64_t rows) {
    call.product(call.numbers.dim, call.numbers.state, rows);
  });
}

void cpu_updates_backward(
    const ScanInputs& in,
    const std::vector<TokenRun>& chunks,
    const at::Tensor& decays,
    const at::Tensor& ddecays,
    const at::Tensor& dupdates,
    const ScanInputs& d
) {
  ScanRun call(in, chunks);
  const at::Tensor of_decays = ddecays.contiguous(), of_updates = dupdates.contiguous();
  call.numbers.decays = floats(decays);
  call.numbers.ddecays = data_of<const float>(of_decays);
  call.numbers.dupdates = data_of<const float>(of_updates);
  set_gradients(call.numbers, d);
  call.run(&ScanKernels::updates_backward, [&](int64_t rows) {
    call.product(rows, call.numbers.dim, call.numbers.state);
    call.product(rows, call.numbers.state, call.numbers.dim);
  });
}

void cpu_outputs(
    const ScanInputs& in,
    const std::vector<TokenRun>& chunks,
    const at::Tensor& states,
    const at::Tensor& y
) {
  ScanRun call(in, chunks);
  const at::Tensor before = states.contiguous();
  call.numbers.states = data_of<const float>(before);
  call.numbers.y = floats(y);
  call.run(&ScanKernels::outputs, [&](int64_t rows) {
    call.product_of_groups(rows, rows, call.numbers.state);
    call.product(rows, call.numbers.dim, call.numbers.state);
    call.product(rows, call.numbers.dim, rows);
  });
}

void cpu_outputs_backward(
    const ScanInputs& in,
    const std::vector<TokenRun>& chunks,
    const at::Tensor& states,
    const at::Tensor& y,
    const at::Tensor& dy,
    const at::Tensor& dstates,
    const ScanInputs& d
) {
  ScanRun call(in, chunks);
  const at::Tensor before = states.contiguous();
  call.numbers.states = data_of<const float>(before);
  call.numbers.y = floats(y);
  call.numbers.dy = data_of<const float>(dy);
  call.numbers.dstates = floats(dstates);
  set_gradients(call.numbers, d);
  call.numbers.dc = data_of<void>(d.c);
  call.run(&ScanKernels::outputs_backward, [&](int64_t rows) {
    call.product_of_groups(rows, rows, call.numbers.state);
    call.product(rows, rows, call.numbers.dim);
    call.product(rows, call.numbers.dim, rows);
    call.product(rows, call.numbers.state, call.numbers.dim);
    call.product(call.numbers.dim, call.numbers.state, rows);
    call.product_of_groups(rows, call.numbers.state, rows);
    call.product_of_groups(rows, call.numbers.state, rows);
  });
}

} // namespace mh::hybrid
