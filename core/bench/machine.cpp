#include "core/bench/machine.hpp"

#include "core/base/folders.hpp"
#include "core/kernels/level.hpp"
#include "core/kernels/ops.hpp"
#include "core/kernels/processor.hpp"
#include "core/recipe/commands.hpp"
#include "megahost/error.hpp"

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/ones.h>

#include <unistd.h>

#include <algorithm>
#include <filesystem>

namespace mh {

namespace {

/// The memory of a process of megahost without a tensor: its code and LibTorch's, their tables,
/// stacks.
constexpr double kProgramGib = 0.15;

/// TB/s of a copy of so many bytes, reads and writes together.
double copy_rate(int64_t bytes, double seconds) {
  const at::Tensor from = at::ones({bytes}, at::kByte);
  at::Tensor to = at::ones({bytes}, at::kByte);
  return 2e-12 * static_cast<double>(bytes) /
         shortest_time([&] { to.copy_(from); }, nullptr, seconds);
}

std::optional<std::filesystem::path> machine_file() {
  const auto folder = user_folder();
  return folder ? std::optional(*folder / "machine.toml") : std::nullopt;
}

} // namespace

std::string processor_text() {
  return this_processor().name + ", " + std::to_string(at::get_num_threads()) +
         " threads, kernels " + std::string(kernels::level().name);
}

Machine measure_cpu(at::ScalarType type, double gemm_rate, double seconds) {
  ops::ensure_registered();
  const at::NoGradGuard no_grad;
  Machine machine;
  Hardware& cpu = machine.hardware;
  cpu.name = "cpu";
  cpu.source = processor_text();
  cpu.device = "cpu";
  (type == at::kFloat ? cpu.fp32_tflops : cpu.bf16_tflops) = gemm_rate / 1e12;
  const auto memory =
      static_cast<double>(sysconf(_SC_PHYS_PAGES)) * static_cast<double>(sysconf(_SC_PAGE_SIZE));
  cpu.memory_gib = memory / 1073741824.0;
  cpu.memory_tb_s = copy_rate(int64_t{128} << 20, seconds);
  cpu.cache_mib = 8;
  cpu.cache_tb_s = copy_rate(int64_t{2} << 20, seconds);
  cpu.reserved_gib = kProgramGib;
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

Machine share_of(Machine cpu, int64_t ranks) {
  const auto share = static_cast<double>(ranks);
  Hardware& part = cpu.hardware;
  for (double* rate :
       {&part.fp32_tflops,
        &part.bf16_tflops,
        &part.memory_gib,
        &part.memory_tb_s,
        &part.cache_tb_s,
        &part.link_gb_s}) {
    *rate /= share;
  }
  for (auto& [kind, rates] : cpu.calibration.rates) {
    for (MeasuredRate& measured : rates) {
      measured.g_per_s /= share;
    }
  }
  part.ranks_per_node = ranks;
  return cpu;
}

std::string calibration_file() {
  const auto file = machine_file();
  if (!file) {
    throw Error(
        "there is no folder to write to: neither XDG_DATA_HOME nor HOME is set",
        "set XDG_DATA_HOME to a folder of yours"
    );
  }
  return file->string();
}

std::string machine_text(const Machine& machine) {
  const Hardware& cpu = machine.hardware;
  const Calibration& fit = machine.calibration;
  Table rates;
  for (const auto& [kind, all] : fit.rates) {
    Value::Array rows;
    for (const MeasuredRate& one : all) {
      rows.push_back(Table{
          {"size", Value::Array(one.size.begin(), one.size.end())}, {"g_per_s", one.g_per_s}});
    }
    rates.set(kind, std::move(rows));
  }
  const Table hardware{
      {"source", cpu.source},
      {"device", cpu.device},
      {"bf16_tflops", cpu.bf16_tflops},
      {"fp32_tflops", cpu.fp32_tflops},
      {"memory_gib", cpu.memory_gib},
      {"memory_tb_s", cpu.memory_tb_s},
      {"cache_mib", cpu.cache_mib},
      {"cache_tb_s", cpu.cache_tb_s},
      {"link_gb_s", cpu.link_gb_s},
      {"reserved_gib", cpu.reserved_gib}};
  const Table calibration{
      {"source", fit.source},
      {"product", fit.product},
      {"product_fill", fit.product_fill},
      {"attention", fit.attention},
      {"memory", fit.memory},
      {"link", fit.link},
      {"launch_us", fit.launch_us},
      {"between_us", fit.between_us},
      {"link_us", fit.link_us}};
  return "# Rates of this machine, as `megahost bench --calibrate` measured them: fields are those "
         "of "
         "hardware.toml and\n# calibration.toml; of each operator sizes in bytes or as batch, m, "
         "n, "
         "k, and GB/s or GFLOP/s.\n" +
         toml_text(Table{{"hardware", hardware}, {"calibration", calibration}, {"rates", rates}});
}

std::optional<Machine> calibrated_cpu() {
  const auto file = machine_file();
  std::error_code ignored;
  if (!file || !std::filesystem::is_regular_file(*file, ignored)) {
    return std::nullopt;
  }
  const Value tree = read_toml(read_source(*file, file->string()));
  const auto section = [&](const char* name) {
    const Value* found = tree.find(name);
    return found != nullptr ? *found : Value(Table());
  };
  Value calibration = section("calibration");
  calibration = merge(calibration, Table{{"rates", section("rates")}});
  Machine machine{
      detail::struct_fields<Hardware>().read(section("hardware"), "hardware"),
      detail::struct_fields<Calibration>().read(calibration, "calibration")};
  machine.hardware.name = "cpu";
  return machine.hardware.source == processor_text() ? std::optional(std::move(machine))
                                                     : std::nullopt;
}

} // namespace mh
