#include "core/train/evaluate.hpp"

#include "megahost/error.hpp"

#include <algorithm>

namespace mh {

void require_evaluation(const Session& session) {
  const auto& train = session.recipe.train;
  if (train.eval_interval > 0 && session.corpus->size(Split::valid) == 0) {
    throw Error(
        "train.eval_interval asks for evaluation, but the validation split holds no sample (" +
            session.corpus->summary() + ")",
        "give data.split a larger second number, or set train.eval_interval = 0",
        exit_code::data
    );
  }
}

std::vector<LossValue> evaluate_split(const Session& session, Split split) {
  const auto layout = session.layout();
  std::vector<LossValue> sums; // value: a sum until the end
  for (int64_t i = 0; i < std::max<int64_t>(1, session.recipe.train.eval_iters); ++i) {
    const auto batches = load_batches(*session.corpus, split, i * layout.global(), layout);
    for (const auto& loss : forward_only(session.passes(), batches)) {
      auto known = std::find_if(sums.begin(), sums.end(), [&](const auto& sum) {
        return sum.name == loss.name;
      });
      if (known == sums.end()) {
        sums.push_back({loss.name, 0, 0, loss.main});
        known = sums.end() - 1;
      }
      known->value += loss.value * loss.count;
      known->count += loss.count;
    }
  }
  for (auto& sum : sums) {
    sum.value = sum.count > 0 ? sum.value / sum.count : 0;
  }
  return sums;
}

} // namespace mh
