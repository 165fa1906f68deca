#include "chunk_cpu.hpp"

#include <megahost/error.hpp>
#include <megahost/parallel.hpp>

#include <ATen/Parallel.h>
#include <ATen/native/CPUBlas.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstdlib>
#include <string_view>

namespace mh::hybrid {

namespace {

using kernels::ProductSize;

InstructionSet best_set() {
#if defined(__x86_64__)
  const char* wanted = std::getenv("MEGAHOST_CPU_LEVEL");
  const std::string_view name = wanted == nullptr ? "amx" : wanted;
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
                      __builtin_cpu_supports("avx512cd");
  const bool bf16 = avx512 && __builtin_cpu_supports("avx512bf16");
  if (bf16 && (name == "amx" || name == "avx512bf16")) {
    return InstructionSet::avx512bf16;
  }
  if (avx512 && name != "avx2" && name != "base") {
    return InstructionSet::avx512;
  }
  if (avx2 && name != "base") {
    return InstructionSet::avx2;
  }
#endif
  return InstructionSet::base;
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

} // namespace

InstructionSet instruction_set() {
  static const InstructionSet kSet = best_set();
  return kSet;
}

bool whole_tiles(const at::Tensor& x) {
  constexpr int64_t kTileDepth = 32;
  return x.size(3) % kTileDepth == 0;
}

at::Tensor whole_rows(const at::Tensor& x) {
  return x.stride(3) == 1 ? x : x.contiguous();
}

kernels::Strided strided(const at::Tensor& x) {
  return {data_of<void>(x), x.stride(0), x.stride(1), x.stride(2)};
}

float* floats(const at::Tensor& x) {
  MH_ASSERT(x.is_contiguous(), "kernels of recurrences read and write whole tensors");
  return data_of<float>(x);
}

ChunkTasks::ChunkTasks(const std::vector<TokenRun>& chunks) {
  for (const TokenRun& chunk : chunks) {
    rows_.push_back({chunk.first, chunk.count});
  }
}

int64_t ChunkTasks::longest() const {
  int64_t longest = 0;
  for (const kernels::ChunkRows& chunk : rows_) {
    longest = std::max(longest, chunk.count);
  }
  return longest;
}

void ChunkTasks::run(
    int64_t bytes,
    int64_t tasks,
    const at::Tensor& like,
    const Part& part,
    const std::function<void(int64_t rows)>& counted
) {
  const bool alone = at::in_parallel_region();
  const at::Tensor memory =
      at::empty({(alone ? 1 : at::get_num_threads()) * bytes}, like.options().dtype(at::kByte));
  if (like.is_meta()) {
    number_ = memory.narrow(0, 0, like.element_size()).view(like.scalar_type());
    for (const kernels::ChunkRows& chunk : rows_) {
      counted(chunk.count);
    }
    number_.reset(); // the next run has memory of its own
    return;
  }
  parallel_for(0, tasks, 1, [&](int64_t begin, int64_t end) {
    uint8_t* own = memory.mutable_data_ptr<uint8_t>() + (alone ? 0 : at::get_thread_num() * bytes);
    part(kProducts, own, begin, end);
    at::native::cpublas::brgemm_release();
  });
}

void ChunkTasks::product(int64_t batch, int64_t m, int64_t n, int64_t k) const {
  at::Tensor out = number_.expand({batch, m, n});
  at::bmm_out(out, number_.expand({batch, m, k}), number_.expand({batch, k, n}));
}

} // namespace mh::hybrid
