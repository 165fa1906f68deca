#pragma once
/// This machine as a plan knows machines: its rates by measurement.

#include "core/bench/bench.hpp"
#include "core/plan/hardware.hpp"
#include "megahost/host.hpp"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>

namespace mh {

/// The name that `--on` has for this machine's CPU.
inline constexpr const char* kThisMachine = "this";

/// The CPU by its rates of copies, each measured for `seconds`, and of large GEMMs of type `type`,
/// in FLOP/s: what a step reaches of them is assumed.
[[nodiscard]] Machine measure_cpu(at::ScalarType type, double gemm_rate, double seconds);

/// The CPU by the operations of real steps: small models of several widths and lengths are trained
/// for some steps each, in about a minute.
[[nodiscard]] Machine calibrate_cpu(Host& host);

/// The processor that measurements of this CPU hold for: its name, LibTorch's threads, the level of
/// our kernels.
[[nodiscard]] std::string processor_text();

/// FLOP/s of GEMMs of a type on this CPU while `ranks` programs share it: the value of `bench
/// --calibrate`, else that of a third of a second of GEMMs at the first call, which is kept in the
/// user's folder; later ones look again, shortly, and keep what is higher.
[[nodiscard]] double measured_peak(at::ScalarType type, int64_t ranks);

/// Latency and rate of links, from all-reduces of `bench_comm` between two ranks.
void take_links(const BenchTable& collectives, Machine& ret_machine);

/// The share of a CPU that each of `ranks` has.
[[nodiscard]] Machine share_of(Machine cpu, int64_t ranks);

/// The file that `bench --calibrate` writes.
///
/// Throws:  mh::Error where the user has no folder
[[nodiscard]] std::string calibration_file();

[[nodiscard]] std::string machine_text(const Machine& machine);

/// The machine that is written there, if it was measured on a processor like this one, with as many
/// threads.
///
/// Throws:  mh::Error for a faulty file
[[nodiscard]] std::optional<Machine> calibrated_cpu();

} // namespace mh
