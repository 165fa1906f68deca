#pragma once
/// What `megahost bench` measures: each subject is a function that fills a table, which is printed
/// for people or as JSON.

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

/// Seconds of one run of some work, of at least three runs and about a third of a second.
struct RunTimes {
  double shortest; ///< what other programs take of the machine does not count
  double median;
};

[[nodiscard]] RunTimes run_times(const std::function<void()>& work);

[[nodiscard]] inline double shortest_time(const std::function<void()>& work) {
  return run_times(work).shortest;
}

/// FLOP/s of the best product of large square matrices on the CPU, LibTorch's or ours.
[[nodiscard]] double product_rate(at::ScalarType type);

/// A column of a table. Columns of text have no decimals.
struct BenchColumn {
  std::string key;     ///< in JSON: "gflops_per_s"
  std::string heading; ///< for people: "GFLOP/s"
  int decimals = 0;
};

struct BenchTable {
  std::string title;
  std::vector<BenchColumn> columns;
  std::vector<nlohmann::ordered_json> rows; ///< objects with the columns' keys
  std::string note{};                       ///< below the table, for people
};

[[nodiscard]] std::string table_text(const BenchTable& table);
[[nodiscard]] std::string table_json(const BenchTable& table);

/// Matrix products of the shapes that training multiplies: ours and LibTorch's.
[[nodiscard]] BenchTable bench_gemm();
/// Copies, fills and sums of arrays in each cache and beyond.
[[nodiscard]] BenchTable bench_memory();
/// Attention, forward and backward, of 512 to 8,192 tokens: ours and LibTorch's.
[[nodiscard]] BenchTable bench_attention();
/// Collectives along each axis of a mesh.
///
/// Ranks:   all of the mesh
[[nodiscard]] BenchTable bench_comm(const Mesh& mesh, const Device& device);
/// Every other operator of ours, next to what memory and GEMMs would allow.
[[nodiscard]] BenchTable bench_ops();

} // namespace mh
