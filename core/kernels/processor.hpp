#pragma once
/// The abilities of this machine's processor.

#include <cstdint>
#include <string>

namespace mh {

struct Processor {
  std::string name; ///< "AMD EPYC"
  /// Vector instructions that kernels run at: "AVX512". Results are bit-identical only at the same
  /// level and thread count.
  std::string level;
  int64_t cores = 0; ///< physical ones
  bool avx2 = false;
  bool avx512 = false;
  bool avx512_bf16 = false;
  bool amx_bf16 = false;

  /// It multiplies bf16 in hardware: bf16 then trains faster than fp32.
  [[nodiscard]] bool bf16() const { return avx512_bf16 || amx_bf16; }
};

[[nodiscard]] const Processor& this_processor();

} // namespace mh
