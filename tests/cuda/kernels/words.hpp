#pragma once
/// The words of the kernel language, for a CPU's compiler.

#define __global__
#define __device__
#define __host__
#define __shared__ static
#define __launch_bounds__(threads)

struct alignas(16) uint4 {
  unsigned x, y, z, w;
};

struct alignas(8) uint2 {
  unsigned x, y;
};

template <class Word>
Word __ldcg(const Word* from) {
  return *from;
}

template <class Word>
void __stcg(Word* to, Word value) {
  *to = value;
}

struct KernelIndex {
  unsigned x = 0;
};

inline KernelIndex threadIdx, blockIdx;
