#pragma once
/// The kernels of GPUs as a C table, which `libmegahost-cuda.so` exports: pointers into a GPU's
/// memory, plain numbers and a stream. nvcc and g++ both read this header, and neither finds
/// LibTorch in it.
///
/// Each function starts one kernel on the current GPU and does not wait for it.
///
/// Returns: null, or the CUDA runtime's sentence of what is wrong

#include "core/base/activate.hpp"
#include "core/base/update_kind.hpp"

#include <cstdint>

namespace mh::cuda {

enum class GpuType : uint8_t { fp32, bf16 };

/// A number of the host, or the factor of one in the GPU's memory, which the kernel reads.
struct GpuNumber {
  double value;
  const double* base; ///< null: the number is `value`
};

/// One dimension of the slice of a global tensor that an item is, the outermost first.
struct Place {
  int64_t size, shape, offset; ///< the slice's size, the global tensor's, the slice's offset in it
};

/// One parameter in an optimizer's pass.
struct GpuItem {
  void *weight, *first, *second; ///< states may be null
  float* gradient;
  void* parameter; ///< bf16; may be null
  GpuType weight_type, state_type;
  int64_t count;         ///< number of elements
  int64_t first_chunk;   ///< chunks of the items before this one
  int32_t place, places; ///< its begin and length in UpdateLaunch::places; none: the whole tensor
  uint64_t key;          ///< key of its random numbers
  GpuNumber rate, decay;
};

constexpr int64_t kUpdateChunk = 8192; ///< elements of one item that a block of threads updates

/// All items at once; UpdateRule in megahost/optimizer.hpp has the formulas.
struct UpdateLaunch {
  UpdateKind kind = UpdateKind::adam;
  bool decoupled = true, nesterov = false, stochastic = false;
  double beta1 = 0, beta2 = 0, eps = 0;
  GpuNumber scale{1, nullptr}, step{1, nullptr};
  double rest1 = 0, rest2 = 0; ///< 1 - beta1^step and 1 - beta2^step, where the host knows the step
  const GpuItem* items = nullptr;
  const Place* places = nullptr;
  int32_t item_count = 0;
  int64_t chunks = 0; ///< chunks of all items
};

/// y = x mask / (1 - p) over rows (token, sample), as kernels::DropoutLaunch.
struct DropoutLaunch {
  GpuType type;
  int64_t rows, batch, features, first_feature;
  const void* x;
  void* y;
  const int64_t *samples, *tokens;
  uint64_t key;
  uint32_t threshold; ///< an element is kept whose random word is not below it
  float scale;
};

/// y = act(gate) up, from rows of gate and up side by side, or y = act(x); with dy the gradient dx.
struct ActivationLaunch {
  GpuType type;
  Activate kind;
  bool gated;
  int64_t rows, width; ///< rows of y, and elements of each
  const void *x, *dy;  ///< dy null: forward
  void *y, *dx;        ///< one of them is written
};

/// y = (sum - mean) rstd weight + bias, or y = sum rstd weight, of sum = x + added, rounded.
struct NormLaunch {
  GpuType type;
  int64_t rows, columns;
  float eps;
  const void *x, *added, *weight, *bias; ///< added and bias may be null
  void *sum, *y;                         ///< sum is written where there is `added`
  float *mean, *rstd;                    ///< one per row; mean null: RMS norm
};

constexpr int64_t kNormChunk =
    32; ///< rows of which a block adds up the gradients of weight and bias

/// The gradient of x with that of the sum, and the sums over chunks of rows of those of weight and
/// bias.
struct NormGradientLaunch {
  GpuType type;
  int64_t rows, columns;
  const void *dy, *x, *weight, *dsum; ///< dsum may be null
  const float *mean, *rstd;           ///< one per row; mean null: RMS norm
  void* dx;
  float* sums; ///< [chunks, columns], layer norm [chunks, 2, columns]: the bias's last; may be null
};

/// Adds the sum of all rows to `sums`, of columns from `split` on to `rest`; either may be null.
struct RowSumsLaunch {
  GpuType type;
  int64_t rows, columns, split;
  const void* x;
  float *sums, *rest;
};

/// Heads of one tensor whose elements lie side by side.
struct RotaryPart {
  const void* x;
  int64_t heads, seq, sample, head; ///< how many; strides of tokens, samples and heads
};

/// Heads of the parts one behind the other, those of the first `rotated` parts rotated.
struct RotaryLaunch {
  GpuType type;
  int64_t rows, batch, heads, dim, half; ///< rows (token, sample); heads of all parts
  RotaryPart parts[3];
  int32_t rotated;
  void* y;
  const float *cosine, *sine; ///< [seq, table_batch, half]
  int64_t table_batch;        ///< 1 or batch
  bool inverse;
};

/// Adds rows to the rows of a table that their ids name, each sum in the rows' order.
struct EmbeddingLaunch {
  GpuType type;
  int64_t rows, columns;
  const int64_t *ids, *order; ///< sorted, and which row each is of; below 0: none
  const void* x;
  float* table;
};

/// Logits of `columns` entries a row, of which the first `entries` are true ones.
struct VocabLaunch {
  GpuType type;
  int64_t rows, columns, entries, first; ///< `first` is the label of column 0
  void* z;
  const int64_t* labels;
  float *top, *sum, *target; ///< forward: maximum, sum exp(z - top), the label's logit or 0
  const float *lse, *scale;  ///< gradient: z = (exp(z - lse) - [label]) scale; null: forward
};

struct LaunchTable {
  const char* (*activation)(const ActivationLaunch&, void* stream);
  const char* (*dropout)(const DropoutLaunch&, void* stream);
  const char* (*embedding)(const EmbeddingLaunch&, void* stream);
  const char* (*norm)(const NormLaunch&, void* stream);
  const char* (*norm_gradient)(const NormGradientLaunch&, void* stream);
  const char* (*rotary)(const RotaryLaunch&, void* stream);
  const char* (*row_sums)(const RowSumsLaunch&, void* stream);
  const char* (*update)(const UpdateLaunch&, void* stream);
  const char* (*vocab)(const VocabLaunch&, void* stream);
};

} // namespace mh::cuda

/// The library's export.
extern "C" const mh::cuda::LaunchTable* megahost_cuda_table();
