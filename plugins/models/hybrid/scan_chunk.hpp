#pragma once
/// One chunk of the scan as its kernels see it.

#include "chunk_of_group.hpp"
#include "scan_kernels.hpp"

#include <algorithm>
#include <initializer_list>

namespace mh::kernels::MH_LEVEL {

/// One chunk of one sample and group: Q tokens, R heads of P elements, N numbers of state; and the
/// thread's memory, cut into parts.
template <class I, class T>
class CachedChunk : public ChunkOfGroup<ScanCall, T> {
  using Base = ChunkOfGroup<ScanCall, T>;
  using Base::width_;

public:
  using Base::call;
  using Base::depth;
  using Base::documents;
  using Base::dsince;
  using Base::first;
  using Base::from_state;
  using Base::group;
  using Base::heads;
  using Base::number;
  using Base::of_chunk;
  using Base::of_row;
  using Base::rows;
  using Base::sample;
  using Base::since;
  using Base::to_end;

  CachedChunk(const ScanCall& all, const ProductKernels& products, void* memory, int64_t task)
      : Base(all, products, memory) {
    Arena& arena = this->arena_;
    const int64_t P = call.dim, N = call.state, W = width_;
    dt = arena.take<float>(heads * W);
    along_y = arena.take<float>(W);
    line_ = arena.take<float>(std::max({P, N, W}));
    rows_b = arena.take<T>(W * N);
    rows_c = arena.take<T>(W * N);
    right_b = arena.take<T>(W * N);
    right_c = arena.take<T>(W * N);
    turned = arena.take<T>(W * std::max(N, W));
    rows_x = arena.take<T>(W * P);
    rows_dy = arena.take<T>(W * P);
    scaled = arena.take<T>(W * P);
    left = arena.take<T>(W * P);
    right = arena.take<T>(W * P);
    rows_state = arena.take<T>(P * N);
    right_state = arena.take<T>(P * N);
    matrix = arena.take<T>(W * W);
    scores = arena.take<float>(W * W);
    dscores = arena.take<float>(W * W);
    dmatrix = arena.take<float>(W * W);
    first_out = arena.take<float>(W * P);
    second_out = arena.take<float>(W * P);
    changed = arena.take<float>(P * N);
    db = arena.take<float>(W * N);
    dc = arena.take<float>(W * N);
    if (memory != nullptr) {
      this->begin(task);
      for (int64_t r = 0; r < heads; ++r) {
        for (int64_t t = 0; t < width_; ++t) {
          dt[r * width_ + t] = t < rows ? call.dt[of_row(t, r)] : 0;
        }
      }
    }
  }

  [[nodiscard]] static size_t bytes(const ScanCall& call, const ProductKernels& products) {
    return CachedChunk(call, products, nullptr, 0).arena_.used(nullptr);
  }

  [[nodiscard]] int64_t state_size() const { return call.dim * call.state; }

  [[nodiscard]] const I* x(int64_t r) const {
    return row<I>(call.x, first, sample, group * heads + r);
  }

  /// Rows of b or c, as they are multiplied.
  void read_group(T* out, const Strided& x) const {
    const I* from = row<I>(x, first, sample, group);
    pack_rows(out, from, x.seq, rows, depth(), call.state);
  }

  /// Asks for row t of the head after r, of x and of other tensors of x's shape, and for as large a
  /// part of its state: chunks are too far apart in memory for the processor to foresee.
  void expect_next(
      int64_t r, int64_t t, const float* all_states, std::initializer_list<const float*> others
  ) const {
    if (r + 1 == heads) {
      return;
    }
    const auto size = static_cast<int64_t>(sizeof(float));
    expect(x(r + 1) + t * call.x.seq, call.dim * static_cast<int64_t>(sizeof(I)));
    for (const float* all : others) {
      expect(all + of_row(t, r + 1) * call.dim, call.dim * size);
    }
    if (all_states != nullptr) {
      const int64_t part = state_size() / rows;
      expect(all_states + of_chunk(r + 1) * state_size() + t * part, part * size);
    }
  }

  /// out [depth, dim] = rows of head r's x times dt, and times their decays where there are any.
  void write_scaled_x(T* out, int64_t r, const float* decays) const {
    const int64_t n = call.dim;
    for (int64_t t = 0; t < rows; ++t) {
      const float factor = dt[r * width_ + t] * (decays == nullptr ? 1 : decays[t]);
      const I* from = x(r) + t * call.x.seq;
#pragma omp simd
      for (int64_t i = 0; i < n; ++i) {
        line_[i] = wide(from[i]) * factor;
      }
      store_row(out + t * n, line_, n);
    }
    std::fill(out + rows * n, out + depth() * n, T{});
  }

  /// Sets the rows of a head's dy as GEMMs read them, those times from_state, and their dot products
  /// with y.
  void read_dy(int64_t r) const {
    const int64_t n = call.dim;
    for (int64_t t = 0; t < rows; ++t) {
      const float *dy = call.dy + of_row(t, r) * n, *y = call.y + of_row(t, r) * n;
      const float factor = from_state[t];
      T* own = rows_dy + t * n;
      store_row(own, dy, n);
      float sum = 0;
#pragma omp simd reduction(+ : sum)
      for (int64_t i = 0; i < n; ++i) {
        sum += wide(own[i]) * y[i];
        line_[i] = dy[i] * factor;
      }
      along_y[t] = sum;
      store_row(scaled + t * n, line_, n);
    }
    std::fill(rows_dy + rows * n, rows_dy + depth() * n, T{});
    std::fill(scaled + rows * n, scaled + depth() * n, T{});
  }

  /// Rows of floats as a gradient of b or c.
  void write_group(void* all, const float* x) const {
    for (int64_t t = 0; t < rows; ++t) {
      const int64_t at = ((first + t) * call.batch + sample) * call.groups + group;
      store_row(static_cast<I*>(all) + at * call.state, x + t * call.state, call.state);
    }
  }

  /// Gradients of x and dt of head r, from that of `written`: the rows that write_scaled_x made with
  /// these decays. Leaves the dot products of both in `ret_along`, and asks for the next head's x
  /// and state.
  void write_x(
      int64_t r,
      const T* written,
      const float* dwritten,
      const float* decays,
      const float* all_states,
      float* ret_along
  ) const {
    const int64_t P = call.dim;
    for (int64_t t = 0; t < rows; ++t) {
      const float* from = dwritten + t * P;
      const I* own = x(r) + t * call.x.seq;
      const T* made = written + t * P;
      const float left = decays == nullptr ? 1 : decays[t];
      const float factor = dt[r * width_ + t] * left;
      if (all_states != nullptr) {
        expect_next(r, t, all_states, {});
      }
      float sum = 0, along = 0;
#pragma omp simd reduction(+ : sum, along)
      for (int64_t i = 0; i < P; ++i) {
        sum += from[i] * wide(own[i]);
        along += from[i] * wide(made[i]);
        line_[i] = from[i] * factor;
      }
      ret_along[t] = along;
      stream_row(static_cast<I*>(call.dx) + of_row(t, r) * P, line_, P);
      call.ddt[of_row(t, r)] = sum * left;
    }
  }

  float* dt;      // [R, W]
  float* along_y; // [W]
  T *rows_b, *rows_c, *right_b, *right_c, *turned;
  T *rows_x, *rows_dy, *scaled, *left, *right, *rows_state, *right_state, *matrix;
  float *scores, *dscores, *dmatrix, *first_out, *second_out, *changed, *db, *dc;

private:
  float* line_;
};

} // namespace mh::kernels::MH_LEVEL
