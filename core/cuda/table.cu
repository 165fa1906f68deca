#include "core/cuda/kernels.cuh"

__attribute__((visibility("default"))) const mh::cuda::Table* megahost_cuda_table() {
  static const mh::cuda::Table kTable{
      .activation = mh::cuda::activation,
      .dropout = mh::cuda::dropout,
      .norm_gradient = mh::cuda::norm_gradient,
      .update = mh::cuda::update,
      .vocab = mh::cuda::vocab};
  return &kTable;
}
