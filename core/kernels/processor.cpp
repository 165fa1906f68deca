#include "core/kernels/processor.hpp"

#include <ATen/Version.h>
#include <ATen/cpu/Utils.h>

namespace mh {

const Processor& this_processor() {
  static const Processor cpu = [] {
    const auto facts = at::cpu::get_cpu_capabilities();
    const auto has = [&facts](const char* feature) {
      const auto found = facts.find(feature);
      return found != facts.end() && found->second.toBool();
    };
    Processor cpu;
    cpu.name = facts.at("cpu_name").toStringRef();
    cpu.level = at::get_cpu_capability();
    cpu.cores = facts.at("num_physical_cores").toInt();
    cpu.avx2 = has("avx2");
    cpu.avx512 = has("avx512_f");
    cpu.avx512_bf16 = has("avx512_bf16");
    cpu.amx_bf16 = has("amx_bf16");
    return cpu;
  }();
  return cpu;
}

} // namespace mh
