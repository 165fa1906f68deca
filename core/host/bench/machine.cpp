#include "core/host/bench/machine.hpp"

#include "core/host/bench/bench.hpp"
#include "core/train/processor.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/ones.h>

#include <unistd.h>

#include <algorithm>

namespace mh {

namespace {

/// TB/s of a copy of so many bytes, reads and writes together.
double copy_rate(int64_t bytes) {
  const at::Tensor from = at::ones({bytes}, at::kByte);
  at::Tensor to = at::ones({bytes}, at::kByte);
  return 2e-12 * static_cast<double>(bytes) / shortest_time([&] { to.copy_(from); });
}

} // namespace

Machine measure_cpu(at::ScalarType type, int64_t ranks) {
  const at::NoGradGuard no_grad;
  const auto share = static_cast<double>(std::max<int64_t>(1, ranks));
  Machine machine;
  Hardware& cpu = machine.hardware;
  cpu.name = "cpu";
  cpu.source = "measured: products of large matrices, copies in the cache and beyond";
  cpu.device = "cpu";
  const double rate = product_rate(type) / share / 1e12;
  (type == at::kFloat ? cpu.fp32_tflops : cpu.bf16_tflops) = rate;
  const auto memory =
      static_cast<double>(sysconf(_SC_PHYS_PAGES)) * static_cast<double>(sysconf(_SC_PAGE_SIZE));
  cpu.memory_gib = memory / share / 1073741824.0;
  cpu.memory_tb_s = copy_rate(int64_t{128} << 20) / share;
  cpu.cache_mib = 8;
  cpu.cache_tb_s = copy_rate(int64_t{2} << 20) / share;
  cpu.ranks_per_node = std::max<int64_t>(1, ranks);
  cpu.link_gb_s = 1e3 * cpu.memory_tb_s / 4; // through memory: written, read, added, read again
  machine.calibration = {
      .source = "measured rates are reached",
      .fitted_on = {},
      .product = 1,
      .product_fill = 16,
      .attention = 0.45,
      .memory = 1,
      .link = 1,
      .network = 1,
      .transfer = 1,
      .launch_us = 4,
      .link_us = 100,
      .network_us = 100};
  return machine;
}

} // namespace mh
