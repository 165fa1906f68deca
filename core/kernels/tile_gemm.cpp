#include "core/kernels/tile_gemm.hpp"

#include "core/kernels/level.hpp"
#include "core/kernels/operand.hpp"
#include "core/kernels/planned_gpu.hpp"
#include "core/memory/workspaces.hpp"
#include "megahost/parallel.hpp"

#include <ATen/Parallel.h>

#include <algorithm>

namespace mh::ops {

namespace {

using kernels::kTileDepth;
using kernels::kTileStrip;

constexpr int64_t kFewestRows = 64;           // below, copies of the right operand cost more
constexpr int64_t kDeepest = 8192;            // summed in one pass over float32 sums
constexpr int64_t kLeft = int64_t{512} << 10; // elements of a thread's rows: they stay in its cache
constexpr int64_t kRight = int64_t{4} << 20;  // elements of the columns that are packed at a time
constexpr int64_t kTasks = 4;                 // tasks of a thread, where there are rows enough

int64_t round_up(int64_t length, int64_t to) {
  return (length + to - 1) / to * to;
}

/// How a GEMM is cut, each number a whole number of strips or tiles.
struct Cuts {
  Cuts(int64_t m, int64_t n, int64_t k, bool narrow)
      : depth(round_up(narrow ? k : std::min(k, kDeepest), kTileDepth))
      , width(std::min(
            round_up(n, kTileStrip),
            std::max(8 * kTileStrip, kRight / depth / kTileStrip * kTileStrip)
        ))
      , height(std::clamp(
            std::min(
                kLeft / depth / kTileStrip * kTileStrip,
                round_up(m / (kTasks * at::get_num_threads()), kTileStrip)
            ),
            kTileStrip,
            16 * kTileStrip
        )) {}

  [[nodiscard]] int64_t right() const { return width * depth; }

  [[nodiscard]] int64_t left() const { return height * depth; }

  int64_t depth;  ///< summed at a time
  int64_t width;  ///< columns that are packed at a time
  int64_t height; ///< rows that a thread packs at a time
};

class TileGemm {
public:
  TileGemm(const at::Tensor& c, const at::Tensor& a, const at::Tensor& b, bool add)
      : c_(static_cast<char*>(c.mutable_data_ptr()))
      , ldc_(c.stride(0))
      , narrow_(c.scalar_type() == at::kBFloat16)
      , add_(add)
      , m_(a.size(0))
      , n_(b.size(1))
      , k_(a.size(1))
      , a_(a)
      , b_(b)
      , cuts_(m_, n_, k_, narrow_)
      , right_(
            c10::GetAllocator(at::kCPU)->allocate(static_cast<size_t>(cuts_.right()) * sizeof(Bf16))
        )
      , left_(static_cast<size_t>(cuts_.left()) * sizeof(Bf16)) {}

  void run() const {
    for (int64_t k = 0; k < k_; k += cuts_.depth) {
      for (int64_t column = 0; column < n_; column += cuts_.width) {
        const Block block{
            k, std::min(cuts_.depth, k_ - k), column, std::min(cuts_.width, n_ - column)};
        pack_right(block);
        multiply(block);
      }
    }
  }

private:
  /// Part of the right operand: rows from `k`, columns from `column`.
  struct Block {
    int64_t k, depth, column, width;

    [[nodiscard]] int64_t strips() const { return round_up(width, kTileStrip) / kTileStrip; }

    [[nodiscard]] int64_t strip_size() const { return kTileStrip * round_up(depth, kTileDepth); }
  };

  void pack_right(const Block& block) const {
    parallel_for(0, block.strips(), 1, [&](int64_t begin, int64_t end) {
      const int64_t column = begin * kTileStrip;
      tiles().pack_right(
          {.x = b_.at<Bf16>(block.k, block.column + column),
           .stride = b_.stride,
           .count = std::min(end * kTileStrip, block.width) - column,
           .padded = 0,
           .depth = block.depth,
           .transposed = b_.transposed},
          right() + begin * block.strip_size()
      );
    });
  }

  /// Rows of the left operand by the block: threads share rows, and columns too where rows are few.
  void multiply(const Block& block) const {
    const int64_t rows = (m_ + cuts_.height - 1) / cuts_.height;
    const int64_t wanted = std::max<int64_t>(1, kTasks * at::get_num_threads() / rows);
    const int64_t strips = (block.strips() + wanted - 1) / wanted; // strips of a task
    const int64_t parts = (block.strips() + strips - 1) / strips;
    parallel_for(0, rows * parts, 1, [&](int64_t begin, int64_t end) {
      int64_t packed = -1;
      for (int64_t task = begin; task < end; ++task) {
        const int64_t row = task / parts * cuts_.height;
        const int64_t count = std::min(cuts_.height, m_ - row);
        auto* left = static_cast<Bf16*>(left_.mine());
        if (row != packed) {
          pack_left(block, row, count, left);
          packed = row;
        }
        const int64_t first = task % parts * strips;
        const int64_t column = block.column + first * kTileStrip;
        const int64_t size = narrow_ ? sizeof(Bf16) : sizeof(float);
        tiles().multiply(
            {.left = left,
             .right = right() + first * block.strip_size(),
             .rows = count,
             .columns = std::min(strips * kTileStrip, block.width - first * kTileStrip),
             .depth = round_up(block.depth, kTileDepth),
             .c = c_ + (row * ldc_ + column) * size,
             .ldc = ldc_,
             .add = add_ || block.k > 0,
             .narrow = narrow_}
        );
      }
    });
  }

  void pack_left(const Block& block, int64_t row, int64_t count, Bf16* left) const {
    tiles().pack_left(
        {.x = a_.at<Bf16>(row, block.k),
         .stride = a_.stride,
         .count = count,
         .padded = 0,
         .depth = block.depth,
         .transposed = a_.transposed},
        left
    );
  }

  [[nodiscard]] Bf16* right() const { return static_cast<Bf16*>(right_.get()); }

  static const kernels::TileKernels& tiles() { return *kernels::level().tiles; }

  char* c_;
  int64_t ldc_;
  bool narrow_, add_;
  int64_t m_, n_, k_;
  Operand a_, b_;
  Cuts cuts_;
  c10::DataPtr right_;
  Workspaces left_;
};

} // namespace

bool fits_tiles(
    const at::Tensor& a, const at::Tensor& b, at::ScalarType type, at::ScalarType sums
) {
  const bool here = a.is_cpu() || (a.is_meta() && !PlannedGpu::active()); // a plan does the same
  const int64_t m = a.size(0), n = b.size(1), k = a.size(1);
  // LibTorch's GEMMs into bf16 are as fast, or faster; it has none into float32.
  const bool sum =
      sums == at::kFloat && m >= kFewestRows && n >= kernels::kTileStrip && k >= kTileDepth;
  // oneDNN's kernel for tile registers multiplies the numbers behind a row by zeros, where the depth
  // is no whole number of tiles: those of the next row, whose NaN then is the row's own.
  const bool ragged = m > kernels::kTileRows && k > kTileDepth && k % kTileDepth != 0;
  return here && kernels::level().tiles != nullptr && type == at::kBFloat16 && (sum || ragged);
}

void tile_gemm(const at::Tensor& c, const at::Tensor& a, const at::Tensor& b, bool add) {
  TileGemm(c, a, b, add).run();
}

int64_t tile_gemm_workspace(at::ScalarType sums, const at::Tensor& a, const at::Tensor& b) {
  const Cuts cuts(a.size(0), b.size(1), a.size(1), sums == at::kBFloat16);
  return static_cast<int64_t>(sizeof(Bf16)) * (cuts.right() + cuts.left() * at::get_num_threads());
}

} // namespace mh::ops
