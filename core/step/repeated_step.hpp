#pragma once
/// A step whose numbers are suspicious, done again: was it a fault of a moment, does a rank compute
/// wrongly, or do data and weights make such numbers?
///
/// The same step is done twice on the same rank, which finds what is not there again. Then each
/// data-parallel copy of the model runs the microbatches of the next copy: ranks that compute
/// otherwise than their neighbours are named.
///
/// Source:  Megatron-LM, rerun_state_machine.py, which asks another machine after a restart

#include "core/step/step.hpp"
#include "megahost/ranks.hpp"

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace mh {

struct MH_API Repetition {
  enum class Verdict : uint8_t {
    transient,  ///< the numbers were others when the step was done again
    persistent, ///< some ranks compute others than their neighbours, each time
    correct,    ///< all ranks compute the same: data and weights make them
    same        ///< the same numbers again, and no other rank can be asked
  };
  Verdict verdict = Verdict::same;
  std::vector<int64_t>
      ranks{};        ///< ranks that compute or computed wrongly, as far as they are known
  std::string text{}; ///< "the same numbers again, on other ranks, too (correct): ..."
};

/// Whether two results are further apart than rounding explains: by more than 1%, or one of them is
/// no finite number.
[[nodiscard]] MH_API bool are_apart(double a, double b);

/// Compares a step with the same step done again.
///
/// Returns: `transient` or `same`; the ranks whose own share of a loss has changed
/// Ranks:   all of the run
[[nodiscard]] MH_API Repetition
compare_again(const Ranks& ranks, const StepResult& first, const StepResult& again);

/// The numbers of forward and backward passes before anything is summed over data-parallel ranks.
struct OwnNumbers {
  double loss = 0; ///< this rank's share of the losses; 0 where the stage has none
  /// The squared norms of its parameters' gradients, one for each time that a pass has added to one.
  double gradients = 0;
};

/// The numbers of a rank's own microbatches, and of those of the next copy of the model.
struct ExchangedNumbers {
  std::string host;
  int64_t copy = 0;  ///< coordinate along dp
  std::string place; ///< the other coordinates: ranks of the same place do the same work
  OwnNumbers own{}, next{};
};

/// Compares the ranks of a run, by their numbers.
[[nodiscard]] MH_API Repetition compare_exchanged(const std::vector<ExchangedNumbers>& ranks);

/// The step's microbatches on this rank and on another copy of the model, without dropout and
/// without an update.
///
/// own, next:  microbatches of this copy, and of the one whose coordinate along dp is larger by 1
/// Returns:    `persistent` or `correct`; `same` where there is one copy, or experts are shared
///             between copies
/// Ranks:      all of the run
[[nodiscard]] MH_API Repetition exchange_microbatches(
    const Passes& passes,
    const Ranks& ranks,
    std::span<const Batch> own,
    std::span<const Batch> next,
    const StepOptions& options
);

/// Every data-parallel copy of the model gets the same weights, masters and optimizer state: those of
/// the first copy, and under `zero` those of the ranks that update them.
///
/// Ranks:  all of the run
void share_state(Weights& weights, Gradients& gradients);

} // namespace mh
