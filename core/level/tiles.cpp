/// Products of bf16 matrices in tile registers.
///
/// Source:  Intel, "Intrinsics Guide", AMX-BF16; "64 and IA-32 Architectures Optimization Reference
///          Manual", chapter on AMX: four tiles of sums, two of each operand

#include "core/level/pack.hpp"
#include "core/level/table.hpp"

#include <immintrin.h>

#include <algorithm>

namespace mh::kernels::MH_LEVEL {

namespace {

constexpr int64_t kTileBytes = 64; // bytes in a row of a tile register
constexpr int64_t kTileElements = kTileRows * kTileDepth;

/// All eight registers whole.
void configure() {
  struct alignas(64) {
    uint8_t palette = 1, start_row = 0;
    uint8_t reserved[14] = {};
    uint16_t row_bytes[16] = {};
    uint8_t rows[16] = {};
  } registers;

  static_assert(sizeof(registers) == 64);
  for (int i = 0; i < 8; ++i) {
    registers.row_bytes[i] = kTileBytes;
    registers.rows[i] = kTileRows;
  }
  _tile_loadconfig(&registers);
}

/// Packs the part of a matrix in memory that a tile holds; `at` gives element (row or column,
/// depth).
template <class At>
void pack_edge(Bf16* tile, bool pairs, int64_t count, int64_t depth, const At& at) {
  for (int64_t r = 0; r < kTileRows; ++r) {
    for (int64_t d = 0; d < kTileDepth; ++d) {
      Bf16& to = pairs ? tile[d / 2 * kTileDepth + r * 2 + d % 2] : tile[r * kTileDepth + d];
      to = r < count && d < depth ? at(r, d) : Bf16{};
    }
  }
}

/// Strips of 32 rows or columns of x, each as its tiles in the order in which products read them.
/// `whole` copies a tile of which all is there.
template <class Whole>
void pack_strips(const PackCall& c, bool pairs, Bf16* out, const Whole& whole) {
  const auto* x = static_cast<const Bf16*>(c.x);
  const int64_t across = c.transposed ? 1 : c.stride;
  const int64_t along = c.transposed ? c.stride : 1;
  for (int64_t first = 0; first < c.count; first += kTileStrip) {
    for (int64_t d = 0; d < c.depth; d += kTileDepth) {
      for (int64_t r = first; r < first + kTileStrip; r += kTileRows, out += kTileElements) {
        const Bf16* from = x + r * across + d * along;
        if (r + kTileRows <= c.count && d + kTileDepth <= c.depth) {
          whole(out, from);
        } else {
          pack_edge(out, pairs, c.count - r, c.depth - d, [&](int64_t i, int64_t j) {
            return from[i * across + j * along];
          });
        }
      }
    }
  }
}

/// 16 rows of 32 elements as they lie.
void copy_rows(Bf16* tile, const Bf16* from, int64_t stride) {
  for (int64_t i = 0; i < kTileRows; ++i) {
    _mm512_storeu_si512(tile + i * kTileDepth, _mm512_loadu_si512(from + i * stride));
  }
}

/// 32 rows of 16 elements in pairs of rows.
void copy_pairs(Bf16* tile, const Bf16* from, int64_t stride) {
  for (int64_t i = 0; i < kTileRows; ++i) {
    const TileWords pairs = load_pairs(from + 2 * i * stride, from + (2 * i + 1) * stride);
    std::memcpy(tile + i * kTileDepth, &pairs, sizeof(pairs));
  }
}

/// A left tile from 32 rows of 16 elements.
void transpose_pairs(Bf16* tile, const Bf16* from, int64_t stride) {
  transpose_words(tile, kTileRows, [&](int64_t i) {
    return load_pairs(from + 2 * i * stride, from + (2 * i + 1) * stride);
  });
}

/// A right tile from 16 rows of 32 elements.
void transpose_rows(Bf16* tile, const Bf16* from, int64_t stride) {
  transpose_words(tile, kTileRows, [&](int64_t i) { return load_words(from + i * stride); });
}

void pack_left(const PackCall& c, Bf16* out) {
  if (c.transposed) {
    pack_strips(c, /*pairs=*/false, out, [&](Bf16* tile, const Bf16* from) {
      transpose_pairs(tile, from, c.stride);
    });
  } else {
    pack_strips(c, /*pairs=*/false, out, [&](Bf16* tile, const Bf16* from) {
      copy_rows(tile, from, c.stride);
    });
  }
}

void pack_right(const PackCall& c, Bf16* out) {
  // The depth of a right operand that is not transposed is its rows.
  PackCall columns = c;
  columns.transposed = !c.transposed;
  if (c.transposed) {
    pack_strips(columns, /*pairs=*/true, out, [&](Bf16* tile, const Bf16* from) {
      transpose_rows(tile, from, c.stride);
    });
  } else {
    pack_strips(columns, /*pairs=*/true, out, [&](Bf16* tile, const Bf16* from) {
      copy_pairs(tile, from, c.stride);
    });
  }
}

/// sums [32, 32] = a strip by a strip, or added to what is there.
void multiply_strips(
    const Bf16* left, const Bf16* right, int64_t depth, float* sums, int64_t stride, bool add
) {
  const int64_t bytes = stride * static_cast<int64_t>(sizeof(float));
  float* below = sums + kTileRows * stride;
  if (add) {
    _tile_loadd(0, sums, bytes);
    _tile_loadd(1, sums + kTileRows, bytes);
    _tile_loadd(2, below, bytes);
    _tile_loadd(3, below + kTileRows, bytes);
  } else {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
  }
  for (int64_t d = 0; d < depth; d += kTileDepth) {
    _tile_loadd(4, left, kTileBytes);
    _tile_loadd(6, right, kTileBytes);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(7, right + kTileElements, kTileBytes);
    _tile_dpbf16ps(1, 4, 7);
    _tile_loadd(5, left + kTileElements, kTileBytes);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
    left += 2 * kTileElements;
    right += 2 * kTileElements;
  }
  _tile_stored(0, sums, bytes);
  _tile_stored(1, sums + kTileRows, bytes);
  _tile_stored(2, below, bytes);
  _tile_stored(3, below + kTileRows, bytes);
}

/// Puts sums that are no whole strips, or become bf16, where they belong.
void store(const TileCall& c, const float* sums, int64_t row, int64_t column) {
  const int64_t rows = std::min(kTileStrip, c.rows - row);
  const int64_t columns = std::min(kTileStrip, c.columns - column);
  for (int64_t i = 0; i < rows; ++i, sums += kTileStrip) {
    const int64_t at = (row + i) * c.ldc + column;
    if (c.narrow) {
      narrow_row(static_cast<Bf16*>(c.c) + at, sums, columns);
      continue;
    }
    float* to = static_cast<float*>(c.c) + at;
    for (int64_t j = 0; j < columns; ++j) {
      to[j] = c.add ? to[j] + sums[j] : sums[j];
    }
  }
}

void multiply(const TileCall& c) {
  alignas(64) float sums[kTileStrip * kTileStrip];
  configure();
  for (int64_t column = 0; column < c.columns; column += kTileStrip) {
    for (int64_t row = 0; row < c.rows; row += kTileStrip) {
      const Bf16* left = c.left + row * c.depth;
      const Bf16* right = c.right + column * c.depth;
      if (!c.narrow && row + kTileStrip <= c.rows && column + kTileStrip <= c.columns) {
        float* to = static_cast<float*>(c.c) + row * c.ldc + column;
        multiply_strips(left, right, c.depth, to, c.ldc, c.add);
      } else {
        multiply_strips(left, right, c.depth, sums, kTileStrip, /*add=*/false);
        store(c, sums, row, column);
      }
    }
  }
  _tile_release();
}

} // namespace

const TileKernels& tile_kernels() {
  static constexpr TileKernels kKernels = {
      .pack_left = pack_left, .pack_right = pack_right, .multiply = multiply};
  return kKernels;
}

} // namespace mh::kernels::MH_LEVEL
