// All kernels, as nvcc reads them.
#define MH_KERNEL_LANGUAGE "tests/cuda/kernels/fibers.hpp"

#include "core/cuda/activation.cu"
#include "core/cuda/dropout.cu"
#include "core/cuda/embedding.cu"
#include "core/cuda/norm.cu"
#include "core/cuda/rotary.cu"
#include "core/cuda/sums.cu"
#include "core/cuda/table.cu"
#include "core/cuda/update.cu"
#include "core/cuda/vocab.cu"
