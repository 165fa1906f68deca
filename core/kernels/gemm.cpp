#include "core/kernels/gemm.hpp"

#include "core/kernels/gemm_choice.hpp"
#include "core/kernels/level.hpp"
#include "core/kernels/operand.hpp"
#include "core/kernels/planned_gpu.hpp"
#include "core/kernels/registration.hpp"
#include "core/kernels/tile_gemm.hpp"
#include "core/memory/workspaces.hpp"
#include "megahost/parallel.hpp"

#include <ATen/Parallel.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>

#include <algorithm>

namespace mh::ops {

namespace {

using at::Tensor;

constexpr int64_t kColumns = 64; // columns in a panel of the right operand
constexpr int64_t kRows = 64;    // rows in one GEMM
constexpr int64_t kDepth = 1024; // summed in one GEMM
constexpr int64_t kBlock = 4096; // columns of the right operand that are packed at a time

int64_t blocks(int64_t length, int64_t block) {
  return (length + block - 1) / block;
}

/// Elements of the right operand that are packed at a time.
size_t packed_elements(int64_t n, int64_t k) {
  const int64_t width = std::min(kBlock, blocks(n, kColumns) * kColumns);
  return static_cast<size_t>(width * std::min(kDepth, k));
}

/// Elements of a transposed left operand that each thread packs at a time.
size_t left_elements(int64_t k) {
  return static_cast<size_t>(kRows * std::min(kDepth, k));
}

/// Operands of I in memory, multiplied as T.
template <class I, class T>
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
    packed_ = c10::GetAllocator(at::kCPU)->allocate(packed_elements(n_, k_) * sizeof(T));
    const Workspaces workspaces(packs_left() ? left_elements(k_) * sizeof(T) : 0);
    for (int64_t k = 0; k < k_; k += kDepth) {
      for (int64_t column = 0; column < n_; column += kBlock) {
        const Block block{k, std::min(kDepth, k_ - k), column, std::min(kBlock, n_ - column)};
        pack_right(block);
        multiply_rows(block, workspaces);
      }
    }
  }

private:
  /// Part of the right operand: rows from `k`, columns from `column`.
  struct Block {
    int64_t k, depth, column, width;

    [[nodiscard]] int64_t panels() const { return blocks(width, kColumns); }
  };

  /// The block in panels of `kColumns` columns, each as products read it.
  void pack_right(const Block& block) const {
    parallel_for(0, block.panels(), 1, [&](int64_t begin, int64_t end) {
      for (int64_t panel = begin; panel < end; ++panel) {
        const int64_t column = panel * kColumns;
        const kernels::PackCall call{
            .x = b_.at<I>(block.k, block.column + column),
            .stride = b_.stride,
            .count = std::min(kColumns, block.width - column),
            .padded = kColumns,
            .depth = block.depth,
            .transposed = b_.transposed};
        right_kernel()(call, right(block, panel));
      }
    });
  }

  /// All rows of the left operand by the block: threads share rows, and columns too where rows are
  /// few.
  void multiply_rows(const Block& block, const Workspaces& workspaces) const {
    const int64_t rows = blocks(m_, kRows);
    const int64_t wanted = blocks(int64_t{4} * at::get_num_threads(), rows);
    const int64_t panels = blocks(block.panels(), std::min(wanted, block.panels()));
    const int64_t cuts = blocks(block.panels(), panels);
    parallel_for(0, rows * cuts, 1, [&](int64_t begin, int64_t end) {
      for (int64_t task = begin; task < end; ++task) {
        const int64_t first = task % cuts * panels;
        multiply_row(
            block,
            task / cuts * kRows,
            first,
            std::min(first + panels, block.panels()),
            static_cast<T*>(workspaces.mine())
        );
      }
      kernels::release_tiles();
    });
  }

  void multiply_row(const Block& block, int64_t row, int64_t first, int64_t last, T* left) const {
    const int64_t rows = std::min(kRows, m_ - row);
    const bool packed = packs_left();
    if (packed) {
      const kernels::PackCall call{
          .x = a_.at<I>(row, block.k),
          .stride = a_.stride,
          .count = rows,
          .padded = 0,
          .depth = block.depth,
          .transposed = a_.transposed};
      left_kernel()(call, left);
    }
    const T* a = packed ? left : a_.at<T>(row, block.k);
    for (int64_t panel = first; panel < last; ++panel) {
      const int64_t column = panel * kColumns;
      const kernels::ProductSize size{
          .m = rows,
          .n = std::min(kColumns, block.width - column),
          .k = block.depth,
          .lda = packed ? block.depth : a_.stride,
          .ldb = kColumns,
          .ldc = ldc_,
          .add = add_ || block.k > 0};
      kernels::products()(size, a, right(block, panel), c_ + row * ldc_ + block.column + column);
    }
  }

  [[nodiscard]] T* right(const Block& block, int64_t panel) const {
    return static_cast<T*>(packed_.get()) + panel * kColumns * block.depth;
  }

  /// Products read rows of T as they lie.
  [[nodiscard]] bool packs_left() const { return a_.transposed || kMixed; }

  static auto left_kernel() {
    const kernels::PackKernels& pack = kernels::table().pack;
    return kMixed ? pack.left_mixed : sizeof(T) == 2 ? pack.left_bf16 : pack.left_fp32;
  }

  static auto right_kernel() {
    const kernels::PackKernels& pack = kernels::table().pack;
    return kMixed ? pack.right_mixed : sizeof(T) == 2 ? pack.right_bf16 : pack.right_fp32;
  }

  static constexpr bool kMixed = sizeof(I) != sizeof(T);

  float* c_;
  int64_t ldc_, m_, n_, k_;
  Operand a_, b_;
  bool add_;
  c10::DataPtr packed_;
};

void check_product_shapes(const Tensor& c, const Tensor& a, const Tensor& b) {
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

void gemm_plain(Tensor c, const Tensor& a, const Tensor& b, bool add) {
  check_product_shapes(c, a, b);
  if (c.scalar_type() == a.scalar_type()) {
    if (add) {
      c.addmm_(a, b);
    } else {
      at::mm_out(c, a, b);
    }
    return;
  }
  const bool half = a.scalar_type() == at::kBFloat16 || a.scalar_type() == at::kHalf;
  if (c.is_cuda() && half && c.scalar_type() == at::kFloat) { // one call of cuBLAS, not rounded
    if (add) {
      at::addmm_out(c, c, a, b, at::kFloat);
    } else {
      at::mm_out(c, a, b, at::kFloat);
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

/// Only weights' gradients are summed, and only outputs read a matrix's transpose.
ProductKind product_kind(const Tensor& b, bool add) {
  return add                ? ProductKind::weight_gradient
         : b.stride(1) != 1 ? ProductKind::output
                            : ProductKind::input_gradient;
}

/// Whether operands of this type are multiplied as float32 on this CPU.
bool is_mixed(at::ScalarType type) {
  return type == at::kBFloat16 && !kernels::multiplies_bf16();
}

/// Whether our own packing multiplies operands of this type on the CPU, into rows of floats.
bool packs(const Tensor& a, const Tensor& b, at::ScalarType type, bool add) {
  const bool bf16 = type == at::kBFloat16 && (a.size(1) % 2 == 0 || is_mixed(type));
  return a.size(1) > 0 && (type == at::kFloat ? !gemm_choice()[product_kind(b, add)] : bf16);
}

void gemm_cpu(Tensor c, const Tensor& a, const Tensor& b, bool add) {
  check_product_shapes(c, a, b);
  const bool wide = c.scalar_type() == at::kFloat;
  const bool narrow = c.scalar_type() == at::kBFloat16 && !add;
  const bool rows = c.stride(1) == 1 && c.numel() > 0;
  if (rows && (wide || narrow) && fits_tiles(a, b, a.scalar_type(), c.scalar_type())) {
    tile_gemm(c, a, b, add);
  } else if (!rows || !wide || !packs(a, b, a.scalar_type(), add)) {
    gemm_plain(c, a, b, add);
  } else if (a.scalar_type() == at::kFloat) {
    Gemm<float, float>(c, a, b, add).run();
  } else if (is_mixed(a.scalar_type())) {
    Gemm<Bf16, float>(c, a, b, add).run();
  } else {
    Gemm<Bf16, Bf16>(c, a, b, add).run();
  }
}

void gemm_meta(Tensor c, const Tensor& a, const Tensor& b, bool) {
  check_product_shapes(c, a, b);
}

} // namespace

void register_gemm(Libraries& libraries) {
  libraries.definitions.def("gemm_(Tensor(a!) c, Tensor a, Tensor b, bool add) -> ()");
  libraries.cpu.impl("gemm_", gemm_cpu);
  libraries.plain.impl("gemm_", gemm_plain);
  libraries.meta.impl("gemm_", gemm_meta);
}

void gemm_(Tensor c, const Tensor& a, const Tensor& b, bool add) {
  static const auto op = find_op<decltype(gemm_cpu)>("megahost::gemm_");
  op.call(std::move(c), a, b, add);
}

int64_t gemm_workspace(
    at::ScalarType sums, const Tensor& a, const Tensor& b, at::ScalarType type, bool add
) {
  if ((sums == at::kFloat || (sums == at::kBFloat16 && !add)) && fits_tiles(a, b, type, sums)) {
    return tile_gemm_workspace(sums, a, b);
  }
  if (sums == at::kFloat && packs(a, b, type, add)) {
    const bool mixed = is_mixed(type);
    const auto size = static_cast<int64_t>(c10::elementSize(mixed ? at::kFloat : type));
    const auto left = static_cast<int64_t>(left_elements(a.size(1)));
    return size * (static_cast<int64_t>(packed_elements(b.size(1), a.size(1))) +
                   (a.stride(1) == 1 && !mixed ? 0 : left * at::get_num_threads()));
  }
  const auto wide = static_cast<int64_t>(c10::elementSize(sums)); // see gemm_plain
  return sums == type ? 0 : wide * (a.numel() + b.numel() + a.size(0) * b.size(1));
}

bool libtorch_multiplies(const Tensor& a, const Tensor& b) {
  return libtorch_multiplies(a) && !fits_tiles(a, b, a.scalar_type(), a.scalar_type());
}

bool libtorch_multiplies(const Tensor& a) {
  const bool here = a.is_cpu() || (a.is_meta() && !PlannedGpu::active()); // a plan does the same
  return a.is_cuda() || (a.scalar_type() != at::kFloat && !(here && is_mixed(a.scalar_type())));
}

Tensor product(const Tensor& a, const Tensor& b) {
  if (fits_tiles(a, b, a.scalar_type(), a.scalar_type())) {
    Tensor c = at::empty({a.size(0), b.size(1)}, a.options());
    gemm_(c, a, b, /*add=*/false);
    return c;
  }
  if (libtorch_multiplies(a)) {
    return at::mm(a, b);
  }
  Tensor c = at::empty({a.size(0), b.size(1)}, a.options().dtype(at::kFloat));
  gemm_(c, a, b, /*add=*/false);
  return c.to(a.scalar_type());
}

} // namespace mh::ops
