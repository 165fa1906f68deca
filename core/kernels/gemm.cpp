#include "core/kernels/gemm.hpp"

#include "core/kernels/level.hpp"
#include "core/kernels/registration.hpp"
#include "core/kernels/workspaces.hpp"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>

#include <algorithm>

namespace mh::ops {

namespace {

using at::Tensor;

constexpr int64_t kDepth = 256;   // summed at a time
constexpr int64_t kColumns = 128; // of a panel of the right operand
constexpr int64_t kRows = 64;     // of one product

int64_t blocks(int64_t length, int64_t block) {
  return (length + block - 1) / block;
}

/// A matrix in memory: rows of `stride` elements, perhaps of its transpose.
struct Operand {
  explicit Operand(const Tensor& x)
      : transposed(x.stride(1) != 1)
      , kept(x.stride(0) == 1 || x.stride(1) == 1 ? x : x.contiguous()) {
    transposed = kept.stride(1) != 1;
    stride = std::max<int64_t>(kept.stride(transposed ? 1 : 0), 1);
  }

  /// Element (i, j).
  template <class T>
  [[nodiscard]] const T* at(int64_t i, int64_t j) const {
    const auto* data = static_cast<const T*>(kept.const_data_ptr());
    return data + (transposed ? j * stride + i : i * stride + j);
  }

  bool transposed;
  Tensor kept;
  int64_t stride = 1;
};

void multiply(
    const kernels::Products& p,
    int64_t m,
    int64_t n,
    int64_t k,
    int64_t lda,
    int64_t ldb,
    int64_t ldc,
    bool add,
    const kernels::Bf16* a,
    const kernels::Bf16* b,
    float* c
) {
  p.bf16(m, n, k, lda, ldb, ldc, add, a, b, c);
}

void multiply(
    const kernels::Products& p,
    int64_t m,
    int64_t n,
    int64_t k,
    int64_t lda,
    int64_t ldb,
    int64_t ldc,
    bool add,
    const float* a,
    const float* b,
    float* c
) {
  p.fp32(m, n, k, lda, ldb, ldc, add, a, b, c);
}

template <class T>
class Gemm {
public:
  Gemm(const Tensor& c, const Tensor& a, const Tensor& b, bool add)
      : c_(c.mutable_data_ptr<float>())
      , ldc_(c.stride(0))
      , m_(a.size(0))
      , n_(b.size(1))
      , k_(a.size(1))
      , a_(a)
      , b_(b)
      , add_(add) {}

  void run() {
    if (a_.transposed) {
      pack_left();
    }
    // Panels of columns, cut along the rows too where there are few.
    const int64_t panels = blocks(n_, kColumns);
    const int64_t wanted = blocks(int64_t{4} * at::get_num_threads(), panels);
    const int64_t height = blocks(blocks(m_, std::max<int64_t>(wanted, 1)), kRows) * kRows;
    const int64_t cuts = blocks(m_, height);
    const Workspaces workspaces(kDepth * kColumns * sizeof(T));
    at::parallel_for(0, panels * cuts, 1, [&](int64_t begin, int64_t end) {
      for (int64_t task = begin; task < end; ++task) {
        const int64_t row = task % cuts * height;
        panel(
            static_cast<T*>(workspaces.mine()),
            task / cuts * kColumns,
            row,
            std::min(row + height, m_)
        );
      }
      kernels::release_tiles();
    });
  }

private:
  /// The left operand with contiguous rows, in blocks of `kDepth` columns.
  void pack_left() {
    packed_ = c10::GetAllocator(at::kCPU)->allocate(static_cast<size_t>(m_ * k_) * sizeof(T));
    const int64_t depths = blocks(k_, kDepth);
    at::parallel_for(0, depths * blocks(m_, kRows), 1, [&](int64_t begin, int64_t end) {
      for (int64_t task = begin; task < end; ++task) {
        const int64_t k = task % depths * kDepth;
        const int64_t row = task / depths * kRows;
        const int64_t depth = std::min(kDepth, k_ - k);
        const kernels::PackCall call{
            .x = a_.at<T>(row, k),
            .stride = a_.stride,
            .count = std::min(kRows, m_ - row),
            .padded = 0,
            .depth = depth,
            .transposed = true};
        left_kernel()(call, packed() + k * m_ + row * depth);
      }
    });
  }

  void panel(T* right, int64_t column, int64_t first, int64_t last) const {
    const int64_t columns = std::min(kColumns, n_ - column);
    for (int64_t k = 0; k < k_; k += kDepth) {
      const int64_t depth = std::min(kDepth, k_ - k);
      const kernels::PackCall call{
          .x = b_.at<T>(k, column),
          .stride = b_.stride,
          .count = columns,
          .padded = kColumns,
          .depth = depth,
          .transposed = b_.transposed};
      right_kernel()(call, right);
      for (int64_t row = first; row < last; row += kRows) {
        const bool packed_left = a_.transposed;
        multiply(
            kernels::products(),
            std::min(kRows, last - row),
            columns,
            depth,
            packed_left ? depth : a_.stride,
            kColumns,
            ldc_,
            add_ || k > 0,
            packed_left ? packed() + k * m_ + row * depth : a_.at<T>(row, k),
            right,
            c_ + row * ldc_ + column
        );
      }
    }
  }

  [[nodiscard]] T* packed() const { return static_cast<T*>(packed_.get()); }

  static auto left_kernel() {
    return sizeof(T) == 2 ? kernels::table().pack.left_bf16 : kernels::table().pack.left_fp32;
  }

  static auto right_kernel() {
    return sizeof(T) == 2 ? kernels::table().pack.right_bf16 : kernels::table().pack.right_fp32;
  }

  float* c_;
  int64_t ldc_, m_, n_, k_;
  Operand a_, b_;
  bool add_;
  c10::DataPtr packed_;
};

void check(const Tensor& c, const Tensor& a, const Tensor& b) {
  TORCH_CHECK(
      a.dim() == 2 && b.dim() == 2 && c.dim() == 2 && a.size(1) == b.size(0) &&
          c.size(0) == a.size(0) && c.size(1) == b.size(1) && a.scalar_type() == b.scalar_type(),
      "gemm_ needs c [m, n], a [m, k] and b [k, n] with a and b of one type; got ",
      c.sizes(),
      ", ",
      a.sizes(),
      " ",
      a.scalar_type(),
      ", ",
      b.sizes(),
      " ",
      b.scalar_type()
  );
}

void plain(Tensor c, const Tensor& a, const Tensor& b, bool add) {
  check(c, a, b);
  if (c.scalar_type() == a.scalar_type()) {
    if (add) {
      c.addmm_(a, b);
    } else {
      at::mm_out(c, a, b);
    }
    return;
  }
  // A device multiplies bf16 faster than float32; its sums are rounded once.
  const auto type = c.is_cpu() ? c.scalar_type() : a.scalar_type();
  const Tensor made = at::mm(a.to(type), b.to(type));
  if (add) {
    c.add_(made);
  } else {
    c.copy_(made);
  }
}

void cpu(Tensor c, const Tensor& a, const Tensor& b, bool add) {
  check(c, a, b);
  const bool rows = c.scalar_type() == at::kFloat && c.stride(1) == 1 && c.numel() > 0;
  if (rows && a.scalar_type() == at::kFloat && a.size(1) > 0) {
    Gemm<float>(c, a, b, add).run();
  } else if (rows && a.scalar_type() == at::kBFloat16 && a.size(1) > 0 && a.size(1) % 2 == 0 && kernels::multiplies_bf16()) {
    Gemm<kernels::Bf16>(c, a, b, add).run();
  } else {
    plain(c, a, b, add);
  }
}

void meta(Tensor c, const Tensor& a, const Tensor& b, bool) {
  check(c, a, b);
}

} // namespace

void register_gemm(Libraries& libraries) {
  libraries.definitions.def("gemm_(Tensor(a!) c, Tensor a, Tensor b, bool add) -> ()");
  libraries.cpu.impl("gemm_", cpu);
  libraries.cuda.impl("gemm_", plain);
  libraries.meta.impl("gemm_", meta);
}

void gemm_(Tensor c, const Tensor& a, const Tensor& b, bool add) {
  static const auto op = find_op<decltype(cpu)>("megahost::gemm_");
  op.call(std::move(c), a, b, add);
}

void add_product_(Tensor c, const Tensor& a, const Tensor& b) {
  if (a.scalar_type() == at::kBFloat16) {
    c.add_(at::mm(a, b));
  } else {
    gemm_(std::move(c), a, b, /*add=*/true);
  }
}

Tensor product(const Tensor& a, const Tensor& b) {
  if (a.scalar_type() != at::kFloat || a.is_cuda()) {
    return at::mm(a, b);
  }
  Tensor c = at::empty({a.size(0), b.size(1)}, a.options());
  gemm_(c, a, b, /*add=*/false);
  return c;
}

} // namespace mh::ops
