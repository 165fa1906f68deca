#pragma once
/// The kernels of GPUs as a C table, which `libmegahost-cuda.so` exports: pointers into a GPU's
/// memory, plain numbers and a stream. nvcc and g++ both read this header, and neither finds
/// LibTorch in it.
///
/// Each function starts one kernel on the current GPU and does not wait for it.
///
/// Returns: null, or the CUDA runtime's sentence of what is wrong

#include <cstdint>

namespace mh::cuda {

enum class Type : uint8_t { fp32, bf16 };

/// A number of the host, or the factor of one in the GPU's memory, which the kernel reads.
struct Number {
  double value;
  const double* base; ///< null: the number is `value`
};

/// One dimension of the slice of a global tensor that an item is, the outermost first.
struct Place {
  int64_t size, shape, offset; ///< of the slice, of the global tensor, of the slice in it
};

/// One parameter in an optimizer's pass.
struct UpdateItem {
  void *weight, *first, *second; ///< states may be null
  float* gradient;
  void* parameter; ///< bf16; may be null
  Type weight_type, state_type;
  int64_t count;         ///< of elements
  int64_t first_chunk;   ///< chunks of the items before this one
  int32_t place, places; ///< of its dimensions in UpdateCall::places; none: the whole tensor
  uint64_t key;          ///< of its random numbers
  Number rate, decay;
};

enum class UpdateKind : uint8_t { adam, sgd, average }; // in the order of kernels::UpdateKind

constexpr int64_t kUpdateChunk = 8192; ///< elements of one item that a block of threads updates

/// All items at once; UpdateRule in megahost/optimizer.hpp has the formulas.
struct UpdateCall {
  UpdateKind kind = UpdateKind::adam;
  bool decoupled = true, nesterov = false, stochastic = false;
  double beta1 = 0, beta2 = 0, eps = 0;
  Number scale{1, nullptr}, step{1, nullptr};
  double rest1 = 0, rest2 = 0; ///< 1 - beta1^step and 1 - beta2^step, where the host knows the step
  const UpdateItem* items = nullptr;
  const Place* places = nullptr;
  int32_t item_count = 0;
  int64_t chunks = 0; ///< of all items
};

/// y = x mask / (1 - p) over rows (token, sample), as kernels::DropoutCall.
struct DropoutCall {
  Type type;
  int64_t rows, batch, features, first_feature;
  const void* x;
  void* y;
  const int64_t *samples, *tokens;
  uint64_t key;
  uint32_t threshold; ///< an element is kept whose random word is not below it
  float scale;
};

enum class Activate : uint8_t { silu, gelu, gelu_tanh }; // in the order of kernels::Activate

/// y = act(gate) up, from rows of gate and up side by side, or y = act(x); with dy the gradient dx.
struct ActivationCall {
  Type type;
  Activate kind;
  bool gated;
  int64_t rows, width; ///< of y
  const void *x, *dy;  ///< dy null: forward
  void *y, *dx;        ///< one of them is written
};

/// Sums over each chunk of rows of what the gradients of a norm's weight and bias are made of.
struct NormGradientCall {
  Type type;
  int64_t rows, columns, chunk; ///< rows of a chunk
  const void *x, *dy;
  const float *mean, *rstd; ///< one per row; mean null: RMS norm
  float *dweight, *dbias;   ///< [chunks, columns]; dbias may be null
};

/// Logits of `columns` entries a row, of which the first `entries` are true ones.
struct VocabCall {
  Type type;
  int64_t rows, columns, entries, first; ///< `first` is the label of column 0
  void* z;
  const int64_t* labels;
  float *top, *sum, *target; ///< forward: maximum, sum exp(z - top), the label's logit or 0
  const float *lse, *scale;  ///< gradient: z = (exp(z - lse) - [label]) scale; null: forward
};

struct Table {
  const char* (*activation)(const ActivationCall&, void* stream);
  const char* (*dropout)(const DropoutCall&, void* stream);
  const char* (*norm_gradient)(const NormGradientCall&, void* stream);
  const char* (*update)(const UpdateCall&, void* stream);
  const char* (*vocab)(const VocabCall&, void* stream);
};

} // namespace mh::cuda

/// What the library exports.
extern "C" const mh::cuda::Table* megahost_cuda_table();
