#include "scan_cpu.hpp"

#include "scan_kernels.hpp"

#include <megahost/error.hpp>
#include <megahost/parallel.hpp>

#include <ATen/Parallel.h>
#include <ATen/native/CPUBlas.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstdlib>
#include <string_view>
#include <vector>

#define MH_SCAN_LEVEL(name)                                                                        \
  namespace mh::kernels::name {                                                                    \
  const ScanTable& scan_table();                                                                   \
  }
#if defined(__x86_64__)
MH_SCAN_LEVEL(avx512bf16)
MH_SCAN_LEVEL(avx512)
MH_SCAN_LEVEL(avx2)
#endif
MH_SCAN_LEVEL(base)

namespace mh::hybrid {

namespace {

using kernels::ProductSize;
using kernels::ScanCall;
using kernels::ScanKernels;

/// The kernels of the best instruction set that this CPU has, or of a lower one that the core is
/// told to use.
struct ScanLevel {
  const kernels::ScanTable* table = &kernels::base::scan_table();
  bool bf16 = false; ///< it multiplies bf16
};

ScanLevel best_level() {
#if defined(__x86_64__)
  const char* wanted = std::getenv("MEGAHOST_CPU_LEVEL");
  const std::string_view name = wanted == nullptr ? "amx" : wanted;
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
                      __builtin_cpu_supports("avx512cd");
  const bool bf16 = avx512 && __builtin_cpu_supports("avx512bf16");
  if (bf16 && (name == "amx" || name == "avx512bf16")) {
    return {&kernels::avx512bf16::scan_table(), true};
  }
  if (avx512 && name != "avx2" && name != "base") {
    return {&kernels::avx512::scan_table()};
  }
  if (avx2 && name != "base") {
    return {&kernels::avx2::scan_table()};
  }
#endif
  return {};
}

const ScanLevel& level() {
  static const ScanLevel kLevel = best_level();
  return kLevel;
}

const at::BFloat16* of(const Bf16* x) {
  return reinterpret_cast<const at::BFloat16*>(x);
}

/// LibTorch's generated GEMMs of small matrices, which the core's kernels call, too.
constexpr kernels::ProductKernels kProducts = {
    .bf16 =
        [](const ProductSize& s, const Bf16* a, const Bf16* b, float* c) {
          at::native::cpublas::brgemm(
              s.m, s.n, s.k, s.lda, s.ldb, s.ldc, s.add, of(a), of(b), c, true
          );
        },
    .fp32 =
        [](const ProductSize& s, const float* a, const float* b, float* c) {
          at::native::cpublas::brgemm(s.m, s.n, s.k, s.lda, s.ldb, s.ldc, s.add, a, b, c, false);
        },
};

/// Tile registers read a row's last numbers together with what lies behind them, unless these are
/// whole tiles.
bool whole_tiles(const at::Tensor& x) {
  constexpr int64_t kTileDepth = 32;
  return x.size(3) % kTileDepth == 0;
}

const ScanKernels& kernels_for(const ScanInputs& in) {
  const kernels::ScanTable& table = *level().table;
  if (in.x.scalar_type() == at::kFloat) {
    return table.fp32;
  }
  return level().bf16 && whole_tiles(in.x) && whole_tiles(in.b) ? table.bf16 : table.mixed;
}

at::Tensor whole_rows(const at::Tensor& x) {
  return x.stride(3) == 1 ? x : x.contiguous();
}

/// The place of a tensor's elements, which those of the Meta device do not have.
template <class T>
T* data_of(const at::Tensor& x) {
  return x.is_meta() ? nullptr : static_cast<T*>(x.data_ptr());
}

kernels::Strided strided(const at::Tensor& x) {
  return {data_of<void>(x), x.stride(0), x.stride(1), x.stride(2)};
}

float* floats(const at::Tensor& x) {
  MH_ASSERT(x.is_contiguous(), "kernels of the scan write whole tensors");
  return data_of<float>(x);
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
      , starts_(in.starts.defined() ? in.starts.contiguous() : in.starts) {
    int64_t longest = 0;
    for (const TokenRun& chunk : chunks) {
      rows_.push_back({chunk.first, chunk.count});
      longest = std::max(longest, chunk.count);
    }
    numbers = {
        .batch = x_.size(1),
        .heads = x_.size(2),
        .groups = b_.size(2),
        .dim = x_.size(3),
        .state = b_.size(3),
        .longest = longest,
        .chunks = rows_.data(),
        .x = strided(x_),
        .b = strided(b_),
        .c = strided(c_),
        .dt = data_of<const float>(dt_),
        .log_decay = data_of<const float>(log_decay_),
        .starts = starts_.defined() ? data_of<const bool>(starts_) : nullptr};
  }

  /// Runs a kernel. On the Meta device it takes the same memory, and `count` is called for each
  /// chunk: plans count its GEMMs.
  template <class Count>
  void run(ScanKernels::Run ScanKernels::*kernel, const Count& count) {
    const bool alone = at::in_parallel_region();
    const auto bytes = static_cast<int64_t>(kernels_.bytes(numbers));
    const at::Tensor memory =
        at::empty({(alone ? 1 : at::get_num_threads()) * bytes}, x_.options().dtype(at::kByte));
    if (x_.is_meta()) {
      number_ = memory.narrow(0, 0, x_.element_size()).view(x_.scalar_type());
      for (const kernels::ScanRows& chunk : rows_) {
        count(chunk.count);
      }
      return;
    }
    const auto tasks = static_cast<int64_t>(rows_.size()) * numbers.batch * numbers.groups;
    parallel_for(0, tasks, 1, [&](int64_t begin, int64_t end) {
      uint8_t* own =
          memory.mutable_data_ptr<uint8_t>() + (alone ? 0 : at::get_thread_num() * bytes);
      (kernels_.*kernel)(numbers, kProducts, own, begin, end);
      at::native::cpublas::brgemm_release();
    });
  }

  /// Counts a GEMM of each head: what it multiplies is any number, so it takes no memory.
  void product(int64_t m, int64_t n, int64_t k) const { product(numbers.heads, m, n, k); }

  void product_of_groups(int64_t m, int64_t n, int64_t k) const {
    product(numbers.groups, m, n, k);
  }

  ScanCall numbers{};

private:
  void product(int64_t each, int64_t m, int64_t n, int64_t k) const {
    const int64_t all = numbers.batch * each;
    at::Tensor out = number_.expand({all, m, n});
    at::bmm_out(out, number_.expand({all, m, k}), number_.expand({all, k, n}));
  }

  const ScanKernels& kernels_;
  at::Tensor x_, b_, c_, dt_, log_decay_, starts_;
  at::Tensor number_; // what counted GEMMs read and write
  std::vector<kernels::ScanRows> rows_;
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
