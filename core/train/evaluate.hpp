#pragma once
/// Evaluation during and after training.

#include "core/train/session.hpp"

#include <vector>

namespace mh {

/// Throws:  mh::Error (exit code 5) if evaluation is asked for and the validation split has no
/// sample
void require_evaluation(const Session& session);

/// Mean losses over `train.eval_iters` global batches, from the split's first sample: the same
/// samples each time, so that values can be compared.
[[nodiscard]] std::vector<LossValue> evaluate_split(const Session& session, Split split);

} // namespace mh
