/// The table of this instruction set.

#include "core/level/table.hpp"

namespace mh::kernels::MH_LEVEL {

namespace {

template <class I, class T>
AttentionKernels attention_kernels() {
  AttentionKernels kernels{};
  set_attention_forward<I, T>(kernels);
  set_attention_backward<I, T>(kernels);
  return kernels;
}

} // namespace

const KernelTable& table() {
  static const KernelTable kTable = {
      .attention_bf16 = attention_kernels<Bf16, Bf16>(),
      .attention_mixed = attention_kernels<Bf16, float>(),
      .attention_fp32 = attention_kernels<float, float>(),
      .pack = pack_kernels(),
      .rows_bf16 = row_kernels_bf16(),
      .rows_fp32 = row_kernels_fp32(),
      .updates = update_kernels(),
      .experts_bf16 = expert_kernels_bf16(),
      .experts_fp32 = expert_kernels_fp32()};
  return kTable;
}

} // namespace mh::kernels::MH_LEVEL
