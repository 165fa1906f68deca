#pragma once
/// One chunk of a recurrence as its kernels see it: its place, decays, copies that GEMMs read.

#include "chunk_kernels.hpp"
#include "core/level/arena.hpp"
#include "core/level/pack.hpp"

#include <algorithm>
#include <type_traits>

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
struct ChunkMatrix {
  const T* data;
  int64_t stride;
};

/// One chunk of one sample and group of heads.
template <class Call, class T>
class ChunkOfGroup {
public:
  /// Takes the memory of what all recurrences have.
  ChunkOfGroup(const Call& all, const ProductKernels& products, void* memory)
      : call(all)
      , heads(all.heads / all.groups)
      , arena_(memory)
      , width_(filled(all.longest))
      , products_(products) {
    since = arena_.take<float>(heads * width_);
    from_state = arena_.take<float>(width_);
    to_end = arena_.take<float>(width_);
    dsince = arena_.take<float>(width_);
    documents = arena_.take<int32_t>(width_);
  }

  /// Index of head r: in [seq, batch, heads], row t; in [chunks, batch, heads].
  [[nodiscard]] int64_t of_row(int64_t t, int64_t r) const {
    return ((first + t) * call.batch + sample) * call.heads + group * heads + r;
  }

  [[nodiscard]] int64_t of_chunk(int64_t r) const {
    return (number * call.batch + sample) * call.heads + group * heads + r;
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

  /// Rows of floats that are contiguous as they are multiplied: floats stay where they are.
  ChunkMatrix<T> as_rows(T* space, const float* x, int64_t count, int64_t columns) const {
    if constexpr (sizeof(T) == sizeof(float)) {
      return {x, columns};
    } else {
      narrow_row(space, x, count * columns);
      return {space, columns};
    }
  }

  /// A right operand of those rows: floats stay where they are.
  ChunkMatrix<T>
  as_right(T* space, ChunkMatrix<T> x, int64_t count, int64_t padded, int64_t columns) const {
    if constexpr (sizeof(T) == sizeof(float)) {
      return x;
    } else {
      pack_right(space, x.data, x.stride, count, padded, columns);
      return {space, columns};
    }
  }

  /// A right operand of what those `count` rows are the columns of.
  ChunkMatrix<T>
  as_right_transposed(T* space, ChunkMatrix<T> x, int64_t count, int64_t columns) const {
    pack_right_transposed(space, x.data, x.stride, count, count, columns, count);
    return {space, count};
  }

  /// A left operand of what tokens' rows are the columns of: [columns, depth]
  ChunkMatrix<T> as_left_transposed(T* space, const T* x, int64_t stride, int64_t columns) const {
    pack_transposed(space, x, stride, rows, depth(), columns, width_);
    return {space, width_};
  }

  void multiply(
      int64_t m,
      int64_t n,
      int64_t k,
      ChunkMatrix<T> a,
      ChunkMatrix<T> b,
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

  /// The gradient of a logarithm is in that of its sum from any later token on.
  void write_log_decay(int64_t r) const {
    double sum = 0;
    for (int64_t t = rows - 1; t >= 0; --t) {
      sum += dsince[t];
      call.dlog_decay[of_row(t, r)] = static_cast<float>(sum);
    }
  }

  const Call& call;
  int64_t heads; // R
  int64_t number = 0, sample = 0, group = 0, first = 0, rows = 0;

  float* since;               // [R, W]: logarithms of the decays from the chunk's beginning on
  float *from_state, *to_end; // [W]
  float* dsince;              // [W]
  int32_t* documents;         // [W]: how many began in the chunk so far; -1 behind its tokens

protected:
  /// Sets the chunk's place, and all that depends on no tensor but log_decay and starts.
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

  Arena arena_;
  int64_t width_; // W

private:
  const ProductKernels& products_;
};

/// Makes the matrix of head r: the decayed scores of each token (rows) and those before it.
///
/// expect_next:  called with each row, asks for what the next head reads
template <class Chunk, class Expect>
void set_matrix(const Chunk& c, int64_t r, const Expect& expect_next) {
  using Element = std::remove_pointer_t<decltype(c.matrix)>;
  const int64_t W = c.width();
  const float* since = c.since + r * W;
  float* line = c.dmatrix;
  for (int64_t t = 0; t < c.rows; ++t) {
    const float* scores = c.scores + t * W;
    const float own = since[t];
    const int32_t document = c.documents[t];
    const auto last = static_cast<int32_t>(t), end = (last / 16 + 1) * 16;
    expect_next(t);
#pragma omp simd
    for (int32_t s = 0; s < end; ++s) {
      const float value = scores[s] * decay(own - since[s]);
      line[s] = (s <= last) & (c.documents[s] == document) ? value : 0;
    }
    store_row(c.matrix + t * W, line, end);
    std::fill(c.matrix + t * W + end, c.matrix + (t + 1) * W, Element{});
  }
}

/// A kernel over tasks, of a function of one chunk.
template <class Chunk, class Call, void (*Of)(const Chunk&)>
void over_tasks(
    const Call& call, const ProductKernels& products, void* memory, int64_t begin, int64_t end
) {
  for (int64_t task = begin; task < end; ++task) {
    Of(Chunk(call, products, memory, task));
  }
  end_stream();
}

} // namespace mh::kernels::MH_LEVEL
