#pragma once
/// One call of a kernel over rows as plain numbers and pointers.

#include "core/base/activate.hpp"
#include "core/base/update_kind.hpp"

#include <cstdint>

namespace mh::kernels {

/// Rows between two partial sums of a norm's weight gradient: the sums do not depend on threads.
constexpr int64_t kNormChunk = 32;

/// y = (x - mean) rstd weight + bias, or y = x rstd weight; and their gradients.
struct NormCall {
  int64_t columns;
  bool centred; ///< layer norm; otherwise RMS norm
  float eps;
  const void *x, *weight, *bias; ///< bias may be null
  void* y;
  float *mean, *rstd; ///< one per row; mean only where centred
  const void* dy;
  void* dx;
  float *dweight, *dbias; ///< [chunks, columns]: partial sums; dbias only where centred
};

/// Rotation of the first 2 * half elements of each head, backwards where `inverse`.
struct RotaryCall {
  int64_t batch, heads, dim, half;
  const void* x;
  int64_t x_seq, x_batch, x_head; ///< strides of x
  void* y;
  int64_t y_row;              ///< elements from one row's heads to the next's
  const float *cosine, *sine; ///< [seq, table_batch, half]
  int64_t table_batch;
  bool inverse;
};

/// y = act(gate) up, from rows of gate and up side by side; or y = act(x) if not `gated`.
struct ActivationCall {
  int64_t width; ///< elements in a row of y
  Activate kind;
  bool gated;
  const void *x, *dy;
  void *y, *dx;
};

/// Logits of `columns` entries a row, of which the first `entries` are true ones.
struct VocabCall {
  int64_t columns, entries, first; ///< `first` is the label of column 0
  void* z;
  const int64_t* labels;
  float *top, *sum, *target; ///< forward: maximum, sum exp(z - top), the label's logit or 0
  const float *lse, *scale;  ///< backward: z = (exp(z - lse) - [label]) scale
};

/// y = x mask / (1 - p) over rows (token, sample).
struct DropoutCall {
  int64_t batch, features, first_feature;
  const void* x;
  void* y;
  const int64_t *samples, *tokens;
  uint64_t key;
  uint32_t threshold;
  float scale;
};

/// Rows between tokens [tokens, columns] and the slots [slots, columns] that they have at experts;
/// slot < 0: none. Weights, where there are any: one for each choice of a token.
struct ExpertCall {
  int64_t columns, choices;
  const int64_t* slot;  ///< [tokens, choices]
  const float* weight;  ///< the same; may be null: 1
  const void* tokens;   ///< scatter, backward: read
  const void* slots;    ///< gather, backward: read
  void* to_tokens;      ///< gather: written
  void* to_slots;       ///< scatter, backward: written
  float* weight_change; ///< backward: the weights' gradients
  bool streams;         ///< scatter without weights, rows of whole cache lines: past the caches
};

/// One parameter in an optimizer's pass; UpdateRule in megahost/optimizer.hpp has the formulas.
struct UpdateCall {
  UpdateKind kind;
  bool nesterov, stochastic;
  float scale;        ///< factor of the gradient
  float keep, l2;     ///< decay: w = keep w - ..., g = scale g + l2 w
  float rate;         ///< adam: lr / (1 - beta1^step)
  float beta1, rest1; ///< rest: 1 - beta
  float beta2, rest2;
  float root, eps;               ///< root: 1 / sqrt(1 - beta2^step)
  void *weight, *first, *second; ///< state may be null
  float* gradient;
  void* parameter; ///< bf16; may be null
  uint64_t key, step;
  int64_t origin; ///< global index of element 0
};

} // namespace mh::kernels
