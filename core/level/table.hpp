#pragma once
/// The kernels of one instruction set, as a table of functions. Each works on a range of tasks, so
/// that the caller gives each thread a range.

#include "core/level/attention_call.hpp"
#include "core/level/calls.hpp"

#include <cstddef>

namespace mh::kernels {

struct AttentionKernels {
  /// Packs the keys and values of tasks (batch, key head, strip) for all forward tasks to read.
  void (*pack_keys)(const AttentionCall&, void* keys, void* values, int64_t begin, int64_t end);
  /// Tasks are (batch, head, tile of queries); `memory` of `forward_bytes` is one thread's own.
  void (*forward
  )(const AttentionCall&,
    const ProductKernels&,
    const void* keys,
    const void* values,
    void* memory,
    int64_t begin,
    int64_t end);
  /// Tasks are (batch, key head, cut).
  void (*backward
  )(const AttentionCall&, const ProductKernels&, void* memory, int64_t begin, int64_t end);
  size_t (*forward_bytes)(const AttentionCall&);
  size_t (*backward_bytes)(const AttentionCall&);
  size_t element; ///< bytes of what is multiplied
};

/// A block of a matrix to copy: `count` rows (left operand) or columns (right operand) of depth
/// `depth`, for PackKernels an even one of bf16. Transposed means that memory holds the other
/// dimension first.
struct PackCall {
  const void* x;
  int64_t stride; ///< between the rows that lie in memory
  int64_t count, padded, depth;
  bool transposed;
};

struct PackKernels {
  void (*left_bf16)(const PackCall&, void* out);
  void (*left_mixed)(const PackCall&, void* out); ///< bf16 in memory, float products
  void (*left_fp32)(const PackCall&, void* out);
  void (*right_bf16)(const PackCall&, void* out);
  void (*right_mixed)(const PackCall&, void* out);
  void (*right_fp32)(const PackCall&, void* out);
};

constexpr int64_t kTileStrip = 32; ///< rows or columns that tile products take together
constexpr int64_t kTileRows = 16;  ///< rows of a tile register
constexpr int64_t kTileDepth = 32; ///< bf16 numbers in a row of a tile register

/// A product of operands that TileKernels packed, of one depth: a multiple of kTileDepth.
struct TileCall {
  const Bf16 *left, *right;
  int64_t rows, columns, depth;
  void* c; ///< float, or bf16 if `narrow`
  int64_t ldc;
  bool add; ///< to a c of floats
  bool narrow;
};

/// bf16 products in tile registers. Operands are packed into strips of kTileStrip rows (left) or columns
/// (right), with zeros to whole strips and to a whole depth.
struct TileKernels {
  void (*pack_left)(const PackCall&, Bf16* out);
  void (*pack_right)(const PackCall&, Bf16* out);
  void (*multiply)(const TileCall&); ///< leaves the thread's tile registers released
};

/// Each over rows from begin to end, of tensors of one type.
struct RowKernels {
  void (*norm_forward)(const NormCall&, int64_t begin, int64_t end);
  void (*norm_backward)(const NormCall&, int64_t begin, int64_t end); ///< one chunk of kNormChunk
  void (*rotary)(const RotaryCall&, int64_t begin, int64_t end);
  void (*dropout)(const DropoutCall&, int64_t begin, int64_t end);
  void (*activation_forward)(const ActivationCall&, int64_t begin, int64_t end);
  void (*activation_backward)(const ActivationCall&, int64_t begin, int64_t end);
  void (*vocab_forward)(const VocabCall&, int64_t begin, int64_t end);
  void (*vocab_backward)(const VocabCall&, int64_t begin, int64_t end);
  /// Over columns: out += the sum of the rows of x.
  void (*add_row_sums
  )(const void* x, int64_t rows, int64_t columns, float* out, int64_t begin, int64_t end);
};

/// Each over elements from begin to end, by the types of weights and state.
struct UpdateKernels {
  using Update = void (*)(const UpdateCall&, int64_t begin, int64_t end);
  Update fp32, fp32_bf16, bf16_fp32, bf16;
};

/// Each over tokens from begin to end, of tensors of one type.
struct ExpertKernels {
  void (*scatter)(const ExpertCall&, int64_t begin, int64_t end); ///< slot = weight * token
  void (*gather)(const ExpertCall&, int64_t begin, int64_t end);  ///< token = sum of weight * slot
  /// The backward pass of gather: `tokens` are the incoming gradients.
  void (*backward)(const ExpertCall&, int64_t begin, int64_t end);
};

struct KernelTable {
  AttentionKernels attention_bf16;  ///< bf16 tensors, bf16 products
  AttentionKernels attention_mixed; ///< bf16 tensors, float products: for CPUs that lack the others
  AttentionKernels attention_fp32;
  PackKernels pack;
  RowKernels rows_bf16, rows_fp32;
  UpdateKernels updates;
  ExpertKernels experts_bf16, experts_fp32;
};

} // namespace mh::kernels

namespace mh::kernels::MH_LEVEL {

/// The kernels for tensors of I, multiplied as T.
template <class I, class T>
void set_attention_forward(AttentionKernels& kernels);
template <class I, class T>
void set_attention_backward(AttentionKernels& kernels);

[[nodiscard]] const PackKernels& pack_kernels();
[[nodiscard]] const RowKernels& row_kernels_bf16();
[[nodiscard]] const RowKernels& row_kernels_fp32();
[[nodiscard]] const UpdateKernels& update_kernels();
[[nodiscard]] const ExpertKernels& expert_kernels_bf16();
[[nodiscard]] const ExpertKernels& expert_kernels_fp32();

[[nodiscard]] const TileKernels& tile_kernels(); ///< all that level "amx" adds

[[nodiscard]] const KernelTable& table();

} // namespace mh::kernels::MH_LEVEL
