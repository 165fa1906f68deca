#pragma once
/// One chunk of the scan as its kernels see it: memory, copies that GEMMs read, decays.

#include "core/level/arena.hpp"
#include "core/level/pack.hpp"
#include "scan_kernels.hpp"

#include <algorithm>
#include <initializer_list>

#ifdef __AVX512F__
#include <immintrin.h>
#endif

namespace mh::kernels::MH_LEVEL {

/// Less than exp of this is left of nothing; see scan.cpp.
constexpr float kFaintest = -60;

constexpr int64_t kWidth = 32; // rows and columns of a chunk's arrays are filled up to multiples

inline int64_t filled(int64_t count) {
  return (count + kWidth - 1) / kWidth * kWidth;
}

/// exp of a sum of logarithms of decays, which is 0 at most but for rounding.
inline float decay(float x) {
  const float bounded = x < kFaintest ? kFaintest : x > 0 ? 0 : x;
  return exp_fast(bounded);
}

inline void store_row(float* out, const float* x, int64_t n) {
  std::copy(x, x + n, out);
}

inline void store_row(Bf16* out, const float* x, int64_t n) {
  narrow_row(out, x, n);
}

/// Stores a row past the caches, where that can be: it is not read soon.
inline void stream_row(float* out, const float* x, int64_t n) {
#ifdef __AVX512F__
  if (reinterpret_cast<uintptr_t>(out) % 64 == 0 && n % 16 == 0) {
    for (int64_t i = 0; i < n; i += 16) {
      _mm512_stream_ps(out + i, _mm512_loadu_ps(x + i));
    }
    return;
  }
#endif
  store_row(out, x, n);
}

inline void stream_row(Bf16* out, const float* x, int64_t n) {
#ifdef __AVX512BF16__
  if (reinterpret_cast<uintptr_t>(out) % 64 == 0 && n % 32 == 0) {
    for (int64_t i = 0; i < n; i += 32) {
      const auto both = narrow(_mm512_loadu_ps(x + i), _mm512_loadu_ps(x + i + 16));
      _mm512_stream_si512(reinterpret_cast<__m512i*>(out + i), both);
    }
    return;
  }
#endif
  store_row(out, x, n);
}

/// Makes streamed stores visible to other threads from here on.
inline void end_stream() {
#ifdef __AVX512F__
  _mm_sfence();
#endif
}

/// Asks for memory that is read or written soon.
inline void expect(const void* x, int64_t bytes) {
  asm volatile(""); // without it g++ 12 drops calls of a function that only does this
  for (int64_t i = 0; i < bytes; i += 64) {
    __builtin_prefetch(static_cast<const char*>(x) + i, 0, 2);
  }
}

/// A matrix whose rows, or pairs of rows of a right operand, are `stride` elements apart.
template <class T>
struct ScanMatrix {
  const T* data;
  int64_t stride;
};

/// One chunk of one sample and group: Q tokens, R heads of P elements, N numbers of state; and the
/// thread's memory, cut into parts.
template <class I, class T>
class CachedChunk {
public:
  CachedChunk(const ScanCall& all, const ProductKernels& products, void* memory, int64_t task)
      : call(all)
      , heads(all.heads / all.groups)
      , products_(products)
      , arena_(memory)
      , width_(filled(all.longest)) {
    const int64_t P = call.dim, N = call.state, W = width_;
    since = arena_.take<float>(heads * W);
    dt = arena_.take<float>(heads * W);
    from_state = arena_.take<float>(W);
    to_end = arena_.take<float>(W);
    dsince = arena_.take<float>(W);
    along_y = arena_.take<float>(W);
    line_ = arena_.take<float>(std::max({P, N, W}));
    documents = arena_.take<int32_t>(W);
    rows_b = arena_.take<T>(W * N);
    rows_c = arena_.take<T>(W * N);
    right_b = arena_.take<T>(W * N);
    right_c = arena_.take<T>(W * N);
    turned = arena_.take<T>(W * std::max(N, W));
    rows_x = arena_.take<T>(W * P);
    rows_dy = arena_.take<T>(W * P);
    scaled = arena_.take<T>(W * P);
    left = arena_.take<T>(W * P);
    right = arena_.take<T>(W * P);
    rows_state = arena_.take<T>(P * N);
    right_state = arena_.take<T>(P * N);
    matrix = arena_.take<T>(W * W);
    scores = arena_.take<float>(W * W);
    dscores = arena_.take<float>(W * W);
    dmatrix = arena_.take<float>(W * W);
    first_out = arena_.take<float>(W * P);
    second_out = arena_.take<float>(W * P);
    changed = arena_.take<float>(P * N);
    db = arena_.take<float>(W * N);
    dc = arena_.take<float>(W * N);
    if (memory != nullptr) {
      begin(task);
    }
  }

  [[nodiscard]] static size_t bytes(const ScanCall& call, const ProductKernels& products) {
    return CachedChunk(call, products, nullptr, 0).arena_.used(nullptr);
  }

  /// Index of head r: in [seq, batch, heads], row t; in [chunks, batch, heads].
  [[nodiscard]] int64_t of_row(int64_t t, int64_t r) const {
    return ((first + t) * call.batch + sample) * call.heads + group * heads + r;
  }

  [[nodiscard]] int64_t of_chunk(int64_t r) const {
    return (number * call.batch + sample) * call.heads + group * heads + r;
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

  /// The decays of head r's tokens until the chunk's end, and of the state before it until them.
  void set_to_end(int64_t r) const {
    const float* own = since + r * width_;
    const float end = own[rows - 1];
    const int32_t last = documents[rows - 1];
#pragma omp simd
    for (int64_t t = 0; t < width_; ++t) {
      const float left = decay(end - own[t]);
      to_end[t] = documents[t] == last ? left : 0;
    }
  }

  void set_from_state(int64_t r) const {
    const float* own = since + r * width_;
#pragma omp simd
    for (int64_t t = 0; t < width_; ++t) {
      const float left = decay(own[t]);
      from_state[t] = documents[t] == 0 ? left : 0;
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

  /// Rows of floats that are contiguous as they are multiplied: floats stay where they are.
  ScanMatrix<T> as_rows(T* space, const float* x, int64_t count, int64_t columns) const {
    if constexpr (sizeof(T) == sizeof(float)) {
      return {x, columns};
    } else {
      narrow_row(space, x, count * columns);
      return {space, columns};
    }
  }

  /// A right operand of those rows: floats stay where they are.
  ScanMatrix<T>
  as_right(T* space, ScanMatrix<T> x, int64_t count, int64_t padded, int64_t columns) const {
    if constexpr (sizeof(T) == sizeof(float)) {
      return x;
    } else {
      pack_right(space, x.data, x.stride, count, padded, columns);
      return {space, columns};
    }
  }

  /// A right operand of what those `count` rows are the columns of.
  ScanMatrix<T>
  as_right_transposed(T* space, ScanMatrix<T> x, int64_t count, int64_t columns) const {
    pack_right_transposed(space, x.data, x.stride, count, count, columns, count);
    return {space, count};
  }

  /// A left operand of what tokens' rows are the columns of: [columns, depth]
  ScanMatrix<T> as_left_transposed(T* space, const T* x, int64_t stride, int64_t columns) const {
    pack_transposed(space, x, stride, rows, depth(), columns, width_);
    return {space, width_};
  }

  void multiply(
      int64_t m,
      int64_t n,
      int64_t k,
      ScanMatrix<T> a,
      ScanMatrix<T> b,
      float* out,
      int64_t stride,
      bool add = false
  ) const {
    const ProductSize size{
        .m = m, .n = n, .k = k, .lda = a.stride, .ldb = b.stride, .ldc = stride, .add = add};
    products_(size, a.data, b.data, out);
  }

  /// Rows that a product over tokens sums, some of zeros.
  [[nodiscard]] int64_t depth() const {
    return sizeof(T) == 2 ? filled(rows) : rows;
  }

  [[nodiscard]] int64_t width() const {
    return width_;
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

  /// The gradient of a logarithm is in that of its sum from any later token on.
  void write_log_decay(int64_t r) const {
    double sum = 0;
    for (int64_t t = rows - 1; t >= 0; --t) {
      sum += dsince[t];
      call.dlog_decay[of_row(t, r)] = static_cast<float>(sum);
    }
  }

  const ScanCall& call;
  int64_t heads; // R
  int64_t number = 0, sample = 0, group = 0, first = 0, rows = 0;

  float *since, *dt;          // [R, W]: logarithms of the decays from the chunk's beginning on
  float *from_state, *to_end; // [W]
  float *dsince, *along_y;    // [W]
  int32_t* documents;         // [W]: how many began in the chunk so far; -1 behind its tokens
  T *rows_b, *rows_c, *right_b, *right_c, *turned;
  T *rows_x, *rows_dy, *scaled, *left, *right, *rows_state, *right_state, *matrix;
  float *scores, *dscores, *dmatrix, *first_out, *second_out, *changed, *db, *dc;

private:
  void begin(int64_t task) {
    number = task / (call.batch * call.groups);
    sample = task / call.groups % call.batch;
    group = task % call.groups;
    first = call.chunks[number].first;
    rows = call.chunks[number].count;
    for (int64_t r = 0; r < heads; ++r) {
      double sum = 0;
      for (int64_t t = 0; t < width_; ++t) {
        sum += t < rows ? call.log_decay[of_row(t, r)] : 0;
        since[r * width_ + t] = static_cast<float>(sum);
        dt[r * width_ + t] = t < rows ? call.dt[of_row(t, r)] : 0;
      }
    }
    int32_t begun = 0;
    for (int64_t t = 0; t < width_; ++t) {
      const bool starts =
          t < rows && call.starts != nullptr && call.starts[(first + t) * call.batch + sample];
      begun += starts ? 1 : 0;
      documents[t] = t < rows ? begun : -1;
    }
  }

  const ProductKernels& products_;
  Arena arena_;
  int64_t width_; // W
  float* line_;
};

} // namespace mh::kernels::MH_LEVEL
