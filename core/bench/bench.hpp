#pragma once
/// The subjects that `megahost bench` measures: each is a function that fills a table, which is
/// printed for people or as JSON.

#include "megahost/device.hpp"
#include "megahost/host.hpp"
#include "megahost/mesh.hpp"

#include <ATen/core/Tensor.h>

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace mh {

/// Seconds for which measured work is repeated.
inline constexpr double kRepeated = 0.35;

/// Seconds of one run of some work, of at least three runs.
struct RunTimes {
  double shortest; ///< the load of other programs on the machine does not count
  double median;
};

/// Times work of the host, or of a device that the host waits for: there, runs that are shorter
/// than some milliseconds are started one after the other and waited for together. Runs are
/// repeated for so many seconds.
[[nodiscard]] RunTimes run_times(
    const std::function<void()>& work, const Device* device = nullptr, double seconds = kRepeated
);

[[nodiscard]] inline double shortest_time(
    const std::function<void()>& work, const Device* device = nullptr, double seconds = kRepeated
) {
  return run_times(work, device, seconds).shortest;
}

/// Whether LibTorch has a GEMM for such operands. Where it has none, as for bf16 on CPUs without
/// instructions for it, a large one takes minutes.
[[nodiscard]] bool libtorch_has_gemm(const at::Tensor& a);

/// FLOP/s of the best GEMM of large square matrices, LibTorch's or ours; null: on the CPU.
[[nodiscard]] double product_rate(at::ScalarType type, const Device* device = nullptr);

/// A column of a table. Columns of text have no decimals.
struct BenchColumn {
  std::string key;     ///< in JSON: "gflops_per_s"
  std::string heading; ///< for people: "GFLOP/s"
  int decimals = 0;
};

/// This machine's CPU, threads and the level of our kernels in a line.
[[nodiscard]] std::string host_summary();

struct BenchTable {
  std::string machine = host_summary(); ///< the machine that was measured
  std::string title;
  std::vector<BenchColumn> columns;
  std::vector<nlohmann::ordered_json> rows; ///< objects with the columns' keys
  std::string note{};                       ///< below the table, for people
};

[[nodiscard]] std::string table_text(const BenchTable& table);
[[nodiscard]] std::string table_json(const BenchTable& table);

/// GEMMs of the shapes that training multiplies on such a device: ours and LibTorch's.
[[nodiscard]] BenchTable bench_gemm(const Device& device);
/// Copies, fills and sums of arrays in each cache and beyond.
[[nodiscard]] BenchTable bench_memory(const Device& device);
/// Attention, forward and backward, of 512 to 8,192 tokens: ours and LibTorch's.
[[nodiscard]] BenchTable bench_attention(const Device& device);
/// Errors of attention under each kind of mask, next to float64.
[[nodiscard]] BenchTable bench_masks(const Device& device);
/// Collectives along each axis of a mesh.
///
/// Ranks:   all of the mesh
[[nodiscard]] BenchTable bench_comm(const Mesh& mesh, const Device& device);
/// Every other operator of ours, next to what memory and GEMMs would allow.
[[nodiscard]] BenchTable bench_ops(const Device& device);

} // namespace mh
