#pragma once
/// What a plan knows of machines: presets/hardware.toml says what they are,
/// presets/calibration.toml how much of that training reaches.

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
  std::string source;                         ///< where the row's own numbers come from
  std::map<std::string, std::string> sources; ///< of single numbers, by field, where it is another
  std::string device = "cuda";
  double bf16_tflops = 0, fp8_tflops = 0, fp32_tflops = 0;
  double memory_gib = 0;
  double memory_tb_s = 0;
  double cache_mib = 0;   ///< of the processor's last cache; 0: what it saves is not counted
  double cache_tb_s = 0;  ///< what it moves
  int64_t processors = 1; ///< that share a GEMM: streaming multiprocessors, cores
  int64_t ranks_per_node = 1;
  double link_gb_s = 0;     ///< between ranks of a node, each direction
  double network_gb_s = 0;  ///< between nodes, each direction, a rank's share
  double reserved_gib = 0;  ///< taken before the first tensor: context, kernels, GEMM workspaces
  double group_gib = 0;     ///< communication buffers of each process group of a rank
  NodeType node{};          ///< of instances: what else they have
  double fragmentation = 0; ///< share of activations that is lost between the allocator's blocks

  static void fields(Fields<Hardware>& f);

  /// FLOP/s of products of this type, or of the next wider one that the machine has.
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
  std::vector<double> size; ///< of products and attention: batch, m, n, k; else bytes
  double g_per_s = 0;       ///< GFLOP/s of products and attention; else GB/s

  static void fields(Fields<MeasuredRate>& f);
};

/// Which parts of a machine's rates training reaches, and what the program that reaches them does
/// in another way than the recorded one: 0 and none where it does the same.
struct MH_API Calibration {
  std::string source;
  std::vector<std::string> fitted_on; ///< published rows, named before others were looked at
  double product = 0.78;              ///< of the peak, by large GEMMs
  double product_fill = 128;          ///< steps along k that it takes a product to get going
  double attention = 0.5;             ///< of the peak, by fused attention
  double score_bytes = 0;             ///< of memory per score of attention, forward: kernels that
                                      ///< write their scores; 0: fused ones, that do not
  double memory = 0.85;               ///< of the memory's rate
  double link = 0.75;                 ///< of the links' rate
  double network = 0.8;               ///< of the network's rate, by collectives
  double transfer = 0.8;              ///< and by transfers between two ranks
  double launch_us = 4;               ///< least time of an operation
  double link_us = 8;                 ///< time of a collective without bytes, and of each round
  double network_us = 20;
  double between_us = 0;   ///< from an operation to the next one, where the host computes, too
  int64_t channels = 0;    ///< processors that a collective takes from what it overlaps
  bool fused = false;      ///< chains of element-wise operations are one kernel each
  double update_bytes = 0; ///< of memory per parameter of an update; 0: as recorded
  double loss_bytes = 0;   ///< of memory per logit, forward and backward; 0: as recorded
  bool scattered = false;  ///< ranks of tp that hold the same send a part each to the next stage,
                           ///< where it is gathered
  /// Mesh axes: nothing overlaps their collectives and transfers.
  std::vector<std::string> waits = {};
  /// Mesh axes: gathers go in pieces, overlapped with the GEMM that needs them, reduce-scatters
  /// with the one that makes them, which is cut like them.
  std::vector<std::string> pieces = {};
  int64_t sum_pieces = 0;          ///< of reduce-scatters at most; 0: as many as ranks
  bool backward_sum_pieces = true; ///< those of gradients, too; no: they sum several products
  bool sums_after = false;         ///< pieces are kept, and added when all are there
  int64_t sum_channels = 0;        ///< processors that pieces take from the GEMM that they overlap
  int64_t streams = 2;             ///< pieces of a product that run at the same time
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
