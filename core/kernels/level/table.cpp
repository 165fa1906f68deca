/// The table of this instruction set.

#include "core/kernels/level/table.hpp"

namespace mh::kernels::MH_LEVEL {

const Table& table() {
  static const Table kTable = {
      .attention_bf16 = attention_kernels<Bf16, Bf16>(),
      .attention_mixed = attention_kernels<Bf16, float>(),
      .attention_fp32 = attention_kernels<float, float>(),
      .pack = pack_kernels()};
  return kTable;
}

} // namespace mh::kernels::MH_LEVEL
