#pragma once
/// One chunk of the delta rule as its kernels see it.

#include "chunk_of_group.hpp"
#include "delta_kernels.hpp"

#include <algorithm>
#include <cmath>

namespace mh::kernels::MH_LEVEL {

/// Stores rows past the caches, whole matrices.
template <class T>
void stream_rows(T* out, const float* x, int64_t rows, int64_t n) {
  for (int64_t t = 0; t < rows; ++t) {
    stream_row(out + t * n, x + t * n, n);
  }
}

template <class T>
void widen(float* out, int64_t stride, const T* x, int64_t rows, int64_t n) {
  for (int64_t t = 0; t < rows; ++t) {
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) {
      out[t * stride + i] = wide(x[t * n + i]);
    }
  }
}

/// One chunk of one sample and key head: Q tokens, R value heads; K elements of a key, V of a value,
/// D of both; and the thread's memory, cut into parts.
template <class I, class T>
class DeltaChunk : public ChunkOfGroup<DeltaCall, T> {
  using Base = ChunkOfGroup<DeltaCall, T>;
  using Base::width_;

public:
  using Base::call;
  using Base::depth;
  using Base::first;
  using Base::from_state;
  using Base::group;
  using Base::heads;
  using Base::number;
  using Base::of_chunk;
  using Base::of_row;
  using Base::rows;
  using Base::sample;

  DeltaChunk(const DeltaCall& all, const ProductKernels& products, void* memory, int64_t task)
      : Base(all, products, memory) {
    Arena& arena = this->arena_;
    const int64_t K = call.key_dim, V = call.dim, D = K + V, W = width_;
    beta = arena.take<float>(heads * W);
    dbeta = arena.take<float>(W);
    factor_q = arena.take<float>(W);
    factor_k = arena.take<float>(W);
    line = arena.take<float>(std::max(D, W));
    rows_q = arena.take<T>(W * K);
    rows_k = arena.take<T>(W * K);
    turned = arena.take<T>(W * K);
    scaled = arena.take<T>(W * K);
    right = arena.take<T>(2 * W * D);
    left = arena.take<T>(2 * W * std::max(K, W));
    tokens = arena.take<T>(3 * W * D);
    rows_state = arena.take<T>(K * std::max(K, V));
    right_state = arena.take<T>(K * std::max(K, V));
    matrix = arena.take<T>(W * W);
    scores = arena.take<float>(W * W);
    dscores = arena.take<float>(W * W);
    dmatrix = arena.take<float>(W * W);
    first_out = arena.take<float>(W * D);
    second_out = arena.take<float>(2 * W * D);
    changed = arena.take<float>(K * std::max(K, V));
    dq = arena.take<float>(W * K);
    dk = arena.take<float>(W * K);
    running = arena.take<float>(K * V);
    if (memory != nullptr) {
      this->begin(task);
      for (int64_t r = 0; r < heads; ++r) {
        for (int64_t t = 0; t < W; ++t) {
          beta[r * W + t] = t < rows ? call.beta[of_row(t, r)] : 0;
        }
      }
    }
  }

  [[nodiscard]] static size_t bytes(const DeltaCall& call) {
    return DeltaChunk(call, {}, nullptr, 0).arena_.used(nullptr);
  }

  /// Head r's matrix [count, columns] of a tensor in the type of products.
  [[nodiscard]] T* of_head(void* all, int64_t r, int64_t count, int64_t columns) const {
    return static_cast<T*>(all) + of_chunk(r) * count * columns;
  }

  [[nodiscard]] ChunkMatrix<T> solved(int64_t r) const {
    const int64_t columns = call.key_dim + call.dim;
    return {of_head(call.solved, r, call.longest, columns), columns};
  }

  [[nodiscard]] T* inverse(int64_t r) const {
    return of_head(call.inverse, r, call.longest, call.longest);
  }

  /// Rows of values, [longest, V], and states, [K, V].
  [[nodiscard]] ChunkMatrix<T> values(void* all, int64_t r) const {
    return {of_head(all, r, call.longest, call.dim), call.dim};
  }

  [[nodiscard]] ChunkMatrix<T> state(void* all, int64_t r) const {
    return {of_head(all, r, call.key_dim, call.dim), call.dim};
  }

  /// Head r's matrix [K, columns] of floats.
  template <class F>
  [[nodiscard]] F* floats_of(F* all, int64_t r, int64_t columns) const {
    return all + of_chunk(r) * call.key_dim * columns;
  }

  [[nodiscard]] const I* v(int64_t r) const {
    return row<I>(call.v, first, sample, group * heads + r);
  }

  /// Rows of q or k, of length `scale`, as they are multiplied.
  void read_directions(T* out, float* ret_factors, const Strided& x, float scale) const {
    const int64_t n = call.key_dim;
    constexpr int64_t kAhead = 8;
    const auto bytes = n * static_cast<int64_t>(sizeof(I));
    for (int64_t t = 0; t < std::min(kAhead, rows); ++t) {
      expect(row<I>(x, first + t, sample, group), bytes);
    }
    for (int64_t t = 0; t < rows; ++t) {
      const I* from = row<I>(x, first + t, sample, group);
      expect(from + kAhead * x.seq, bytes);
      float sum = 0;
#pragma omp simd reduction(+ : sum)
      for (int64_t i = 0; i < n; ++i) {
        sum += wide(from[i]) * wide(from[i]);
      }
      const float factor = scale / std::sqrt(sum + call.length_eps);
      ret_factors[t] = factor;
#pragma omp simd
      for (int64_t i = 0; i < n; ++i) {
        line[i] = wide(from[i]) * factor;
      }
      store_row(out + t * n, line, n);
    }
    clear_rest(out, n);
  }

  /// The gradient of q or k from that of its rows of length `scale`.
  void write_directions(
      void* all, const Strided& x, const float* factors, float scale, const float* gradient
  ) const {
    const int64_t n = call.key_dim;
    for (int64_t t = 0; t < rows; ++t) {
      const I* from = row<I>(x, first + t, sample, group);
      const float* d = gradient + t * n;
      const float factor = factors[t];
      float sum = 0;
#pragma omp simd reduction(+ : sum)
      for (int64_t i = 0; i < n; ++i) {
        sum += d[i] * wide(from[i]);
      }
      const float along = sum * factor * factor / (scale * scale);
#pragma omp simd
      for (int64_t i = 0; i < n; ++i) {
        line[i] = (d[i] - along * wide(from[i])) * factor;
      }
      const int64_t at = ((first + t) * call.batch + sample) * call.groups + group;
      stream_row(static_cast<I*>(all) + at * n, line, n);
    }
  }

  /// out [depth, K] = rows of keys or queries times decays.
  void scale_rows(T* out, const T* x, const float* decays) const {
    const int64_t n = call.key_dim;
    for (int64_t t = 0; t < rows; ++t) {
      const float factor = decays[t];
      const T* from = x + t * n;
#pragma omp simd
      for (int64_t i = 0; i < n; ++i) {
        line[i] = wide(from[i]) * factor;
      }
      store_row(out + t * n, line, n);
    }
    clear_rest(out, n);
  }

  /// Sets the rows that are multiplied and lie behind the chunk's tokens.
  void clear_rest(T* out, int64_t n) const {
    std::fill(out + rows * n, out + depth() * n, T{});
  }

  /// Column `first` of a right operand of D columns.
  static ChunkMatrix<T> columns_from(ChunkMatrix<T> x, int64_t column) {
    return {x.data + column * kPair<T>, x.stride};
  }

  /// Asks for row t's share of the next head's matrix [count, columns] of a tensor: chunks are too far
  /// apart in memory for the processor to foresee.
  void expect_next(const void* all, int64_t r, int64_t t, int64_t count, int64_t columns) const {
    expect_share(all, of_chunk(r) + 1, t, count * columns);
  }

  /// Asks for that share of this head's matrix in the chunk that is `step` chunks away.
  void expect_chunk(
      const void* all, int64_t r, int64_t step, int64_t t, int64_t count, int64_t columns
  ) const {
    if (number + step >= 0 && number + step < call.count) {
      expect_share(all, of_chunk(r) + step * call.batch * call.heads, t, count * columns);
    }
  }

  float* beta;                // [R, W]
  float* dbeta;               // [W]
  float *factor_q, *factor_k; // [W]
  float* line;
  T *rows_q, *rows_k, *turned, *scaled, *right, *left, *tokens, *rows_state, *right_state, *matrix;
  float *scores, *dscores, *dmatrix, *first_out, *second_out, *changed, *dq, *dk;
  float* running; // [K, V]: what passes from one chunk of a head to the next

private:
  void expect_share(const void* all, int64_t matrix, int64_t t, int64_t size) const {
    const int64_t share = size / rows;
    const auto bytes = static_cast<int64_t>(sizeof(T));
    expect(static_cast<const T*>(all) + matrix * size + t * share, share * bytes);
  }
};

} // namespace mh::kernels::MH_LEVEL
