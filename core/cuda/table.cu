#include "core/cuda/kernels.cuh"

__attribute__((visibility("default"))) const mh::cuda::LaunchTable* megahost_cuda_table() {
  static const mh::cuda::LaunchTable kTable{
      .activation = mh::cuda::activation,
      .dropout = mh::cuda::dropout,
      .embedding = mh::cuda::embedding,
      .norm = mh::cuda::norm,
      .norm_gradient = mh::cuda::norm_gradient,
      .rotary = mh::cuda::rotary,
      .row_sums = mh::cuda::row_sums,
      .update = mh::cuda::update,
      .vocab = mh::cuda::vocab};
  return &kTable;
}
