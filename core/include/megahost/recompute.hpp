#pragma once
/// Recompute policies (activation checkpointing): which activations are saved for the backward
/// pass, and which are recomputed.
///
/// Source:  arXiv:1604.06174 (groups of blocks), arXiv:2205.05198 (selective recomputation)

#include "megahost/export.hpp"
#include "megahost/kind.hpp"
#include "megahost/scope.hpp"

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace mh {

/// Parts that blocks of megahost name (StepContext::part). An architecture whose blocks name others
/// declares them: `static std::vector<std::string> recompute_parts() { return {"token_shift"}; }`.
inline constexpr std::array<std::string_view, 5> kRecomputeParts{
    "core_attention", "norms", "activations", "attention", "mlp"};

/// The activations that one block saves.
struct Keep {
  bool everything = true; ///< false: only the block's input; the block runs again in backward
  bool joined = false;    ///< not even that: it runs again together with the block before it
  std::vector<std::string>
      redo{}; ///< parts that are recomputed; a block without them keeps everything

  [[nodiscard]] bool redoes(std::string_view part) const {
    for (const auto& name : redo) {
      if (name == part) {
        return true;
      }
    }
    return false;
  }
};

/// Blocks run by another plan while the value lives (StepContext::keeping).
using KeepScope = ValueScope<const Keep*>;

/// A policy that runs whole blocks again says so by `static bool recomputes_blocks() { return true; }`:
/// pipeline schedules that split the backward pass refuse it, for they would run each block thrice.
class MH_API RecomputePolicy {
public:
  static constexpr Kind kKind = Kind::recompute;

  struct Args {
    int64_t layers = 0; ///< transformer blocks of this stage

    /// Bytes of this rank's tensors at the peak of a step in which block i keeps `keep[i]`:
    /// weights, gradients, optimizer state and activations, as a step on the Meta device counts
    /// them. Empty where there is no run to measure.
    std::function<int64_t(const std::vector<Keep>& keep)> peak_memory{};
  };

  virtual ~RecomputePolicy();

  /// The activations that block `layer` (0 .. layers-1 of this stage) saves.
  [[nodiscard]] virtual Keep keep(int64_t layer) const = 0;
};

} // namespace mh
