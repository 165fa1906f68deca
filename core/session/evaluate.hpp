#pragma once
/// Evaluation during and after training.

#include "core/session/session.hpp"

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace mh {

/// "training", "validation", "test".
[[nodiscard]] std::string_view name_of(Split split);

/// Throws:  mh::Error (exit code 5) if evaluation is asked for and the validation split has no
/// sample
void require_evaluation(const Session& session);

/// "train.eval_iters 10 asks for 20 samples, and the validation split holds 4: some are read 5
/// times" where a split is smaller than what is asked for; else nothing.
[[nodiscard]] std::string repeated_samples(const Session& session, Split split);

/// Mean losses over `train.eval_iters` global batches of each part of a split (Corpus::parts), or
/// of the split if it has none: from the first sample, behind those of the `done` evaluations
/// before, or over all of it, as Corpus::evaluation says. A loss of several parts is the mean of
/// all samples, and there is a "LOSS/NAME" of each.
[[nodiscard]] std::vector<LossValue>
evaluate_split(const Session& session, Split split, int64_t done);

/// How far an evaluation is.
struct Evaluated {
  int64_t samples = 0;           ///< done
  int64_t of = 0;                ///< to do in all
  std::vector<LossValue> losses; ///< means so far
};

using EvaluationProgress = std::function<void(const Evaluated&)>;

/// Mean losses of the first evaluation; `progress` is told how far it is after each global batch.
[[nodiscard]] Evaluated
evaluate_split(const Session& session, Split split, const EvaluationProgress& progress);

/// Mean losses over each sample of a split exactly once. The last global batch is filled up with
/// samples that count for nothing.
[[nodiscard]] Evaluated
evaluate_whole_split(const Session& session, Split split, const EvaluationProgress& progress);

} // namespace mh
