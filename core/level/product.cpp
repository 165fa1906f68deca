/// Copies of blocks of matrices in the layout that small products read.

#include "core/level/pack.hpp"
#include "core/level/table.hpp"

namespace mh::kernels::MH_LEVEL {

namespace {

/// out [count, depth] = rows of x, or columns where x is transposed.
template <class T, class I>
void left(const PackCall& c, T* out) {
  const auto* x = static_cast<const I*>(c.x);
  if (c.transposed) {
    pack_transposed(out, x, c.stride, c.depth, c.depth, c.count, c.depth);
  } else {
    pack_rows(out, x, c.stride, c.count, c.count, c.depth);
  }
}

/// out [depth / pair][padded][pair]: x [depth, count], or [count, depth] where it is transposed.
template <class T, class I>
void right(const PackCall& c, T* out) {
  const auto* x = static_cast<const I*>(c.x);
  constexpr int64_t kPairs = kPair<T>;
  if (c.transposed) {
    pack_right_transposed(out, x, c.stride, c.count, c.padded, c.depth, c.padded);
    return;
  }
  for (int64_t k = 0; k < c.depth; k += kPairs) {
    T* to = out + k * c.padded;
    pack_right(to, x + k * c.stride, c.stride, kPairs, kPairs, c.count);
    for (int64_t j = c.count * kPairs; j < c.padded * kPairs; ++j) {
      to[j] = T{};
    }
  }
}

} // namespace

const PackKernels& pack_kernels() {
  static constexpr PackKernels kKernels = {
      .left_bf16 = [](const PackCall& c,
                      void* out) { left<Bf16, Bf16>(c, static_cast<Bf16*>(out)); },
      .left_mixed = [](const PackCall& c,
                       void* out) { left<float, Bf16>(c, static_cast<float*>(out)); },
      .left_fp32 = [](const PackCall& c,
                      void* out) { left<float, float>(c, static_cast<float*>(out)); },
      .right_bf16 = [](const PackCall& c,
                       void* out) { right<Bf16, Bf16>(c, static_cast<Bf16*>(out)); },
      .right_mixed = [](const PackCall& c,
                        void* out) { right<float, Bf16>(c, static_cast<float*>(out)); },
      .right_fp32 = [](const PackCall& c,
                       void* out) { right<float, float>(c, static_cast<float*>(out)); }};
  return kKernels;
}

} // namespace mh::kernels::MH_LEVEL
