#pragma once
/// The machines that plans know: presets/hardware.toml describes them, presets/calibration.toml how
/// much of their rates training reaches.

#include "core/language/read.hpp"
#include "core/launch/node.hpp"
#include "megahost/export.hpp"
#include "megahost/schema.hpp"

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace mh {

/// One kind of machine, per rank; dense rates without sparsity.
struct MH_API Hardware {
  std::string name;
  std::string is;                             ///< the row that this one starts from; empty: none
  std::string source;                         ///< source of the row's own numbers
  std::map<std::string, std::string> sources; ///< by field, where a single number has its own
  std::string device = "cuda";
  double bf16_tflops = 0, fp8_tflops = 0, fp32_tflops = 0;
  double memory_gib = 0;
  double memory_tb_s = 0;
  double cache_mib = 0;   ///< the processor's last cache; 0: what it saves is not counted
  double cache_tb_s = 0;  ///< rate at which it moves bytes
  int64_t processors = 1; ///< processors that share a GEMM: streaming multiprocessors, cores
  int64_t ranks_per_node = 1;
  double link_gb_s = 0;     ///< between ranks of a node, each direction
  double network_gb_s = 0;  ///< between nodes, each direction, a rank's share
  double reserved_gib = 0;  ///< taken before the first tensor: context, kernels, GEMM workspaces
  double group_gib = 0;     ///< communication buffers of each process group of a rank
  NodeType node{};          ///< further properties of instances
  double fragmentation = 0; ///< share of activations that is lost between the allocator's blocks

  static void fields(Fields<Hardware>& f);

  /// FLOP/s of GEMMs of this type, or of the next wider one that the machine has.
  [[nodiscard]] double peak(at::ScalarType type) const;

  /// Bytes of a rank's memory; 0: unknown.
  [[nodiscard]] int64_t memory() const { return static_cast<int64_t>(memory_gib * 1073741824.0); }

  /// Bytes of a rank that are no tensor's, in `groups` process groups, where tensors of
  /// `activations` bytes come and go.
  [[nodiscard]] int64_t reserved(int64_t groups, int64_t activations) const {
    const double gib = reserved_gib + group_gib * static_cast<double>(groups);
    return static_cast<int64_t>(
        gib * 1073741824.0 + fragmentation * static_cast<double>(activations)
    );
  }
};

/// How fast an operation of one size was.
struct MH_API MeasuredRate {
  std::vector<double> size; ///< batch, m, n, k of GEMMs and attention; else bytes
  double g_per_s = 0;       ///< GFLOP/s of GEMMs and attention; else GB/s

  static void fields(Fields<MeasuredRate>& f);
};

/// The fractions of a machine's rates that training reaches, and the differences between the
/// program that reaches them and the recorded one: 0 and none if they do the same.
struct MH_API Calibration {
  std::string source;
  std::vector<std::string> fitted_on; ///< published rows, named before others were looked at
  double product = 0.78;              ///< share of the peak that large GEMMs reach
  double product_fill = 128;          ///< steps along k that it takes a GEMM to get going
  double attention = 0.5;             ///< share of the peak that fused attention reaches
  double score_bytes = 0; ///< bytes that attention moves per score, forward, in kernels that
                          ///< write their scores; 0: fused ones, that do not
  double memory = 0.85;   ///< share of the memory's rate that is reached
  double link = 0.75;     ///< share of the links' rate that is reached
  double network = 0.8;   ///< share of the network's rate that collectives reach
  double transfer = 0.8;  ///< share that transfers between two ranks reach
  double launch_us = 4;   ///< least time of an operation
  double link_us = 8;     ///< time of a collective without bytes, and of each round
  double network_us = 20;
  double between_us = 0;   ///< from an operation to the next one, where the host computes, too
  int64_t channels = 0;    ///< processors that a collective takes from what it overlaps
  bool fused = false;      ///< chains of element-wise operations are one kernel each
  double update_bytes = 0; ///< bytes that an update moves per parameter; 0: as recorded
  double loss_bytes = 0;   ///< bytes moved per logit, forward and backward; 0: as recorded
  bool scattered = false;  ///< ranks of tp that hold the same send a part each, and the next
                           ///< stage gathers it
  /// Mesh axes: nothing overlaps their collectives and transfers.
  std::vector<std::string> waits = {};
  /// Mesh axes: gathers go in pieces, overlapped with the GEMM that needs them, reduce-scatters
  /// with the one that makes them, which is cut like them.
  std::vector<std::string> pieces = {};
  int64_t sum_pieces = 0;          ///< pieces of a reduce-scatter at most; 0: as many as ranks
  bool backward_sum_pieces = true; ///< gradients' too; no: they sum several GEMMs
  bool sums_after = false;         ///< pieces are kept, and added when all are there
  int64_t sum_channels = 0;        ///< processors that pieces take from the GEMM that they overlap
  int64_t streams = 2;             ///< pieces of a GEMM that run at the same time
  /// Rates by operator and type, in place of what is computed from the rates above.
  std::map<std::string, std::vector<MeasuredRate>> rates = {};

  static void fields(Fields<Calibration>& f);
};

struct Machine {
  Hardware hardware;
  Calibration calibration;
};

/// Names of the table's rows.
[[nodiscard]] std::vector<std::string> hardware_names(const ReadOptions& options);

/// A row of the recipe folders' tables, with its calibration ("default" if it has none).
///
/// Throws:  mh::Error naming the nearest rows if there is none; RecipeError for a faulty table
[[nodiscard]] MH_API Machine find_machine(const std::string& name, const ReadOptions& options);

} // namespace mh
