#include "core/train/evaluate.hpp"

#include "core/base/number_text.hpp"
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

std::string_view name_of(Split split) {
  return split == Split::train ? "training" : split == Split::valid ? "validation" : "test";
}

std::string repeated_samples(const Session& session, Split split) {
  const int64_t size = session.corpus->size(split);
  const int64_t wanted = session.recipe.train.eval_iters * session.layout().global();
  if (size == 0 || wanted <= size) {
    return "";
  }
  return "train.eval_iters " + std::to_string(session.recipe.train.eval_iters) + " asks for " +
         grouped(wanted) + " samples, and the " + std::string(name_of(split)) + " split holds " +
         grouped(size) + ": some are read " + grouped((wanted + size - 1) / size) + " times";
}

namespace {

/// Adds up means and counts; `value` of a sum is a sum.
class Means {
public:
  void add(const std::vector<LossValue>& losses) {
    for (const auto& loss : losses) {
      auto known = std::find_if(sums_.begin(), sums_.end(), [&](const auto& sum) {
        return sum.name == loss.name;
      });
      if (known == sums_.end()) {
        sums_.push_back({loss.name, 0, 0, loss.main});
        known = sums_.end() - 1;
      }
      known->value += loss.value * loss.count;
      known->count += loss.count;
    }
  }

  [[nodiscard]] std::vector<LossValue> values() const {
    std::vector<LossValue> means = sums_;
    for (auto& mean : means) {
      mean.value = mean.count > 0 ? mean.value / mean.count : 0;
    }
    return means;
  }

private:
  std::vector<LossValue> sums_;
};

/// Makes samples from number `end` on count for nothing: their masks, the arrays of floats, are 0.
void leave_out(std::vector<Batch>& batches, int64_t end) {
  for (Batch& batch : batches) {
    for (auto& [name, array] : batch.arrays) {
      for (size_t column = 0; array.is_floating_point() && column < batch.samples.size();
           ++column) {
        if (batch.samples[column] >= end) {
          array.select(1, static_cast<int64_t>(column)).zero_();
        }
      }
    }
  }
}

/// `samples` of a split from its first, a global batch at a time.
Evaluated
evaluate(const Session& session, Split split, int64_t samples, const EvaluationProgress& progress) {
  BatchLayout layout = session.layout();
  Means means;
  Evaluated evaluated{.samples = 0, .of = samples, .losses = {}};
  while (evaluated.samples < samples) {
    const int64_t left = samples - evaluated.samples;
    const int64_t at_once = layout.micro * layout.data_ranks;
    if (left < layout.global() && session.pipeline == nullptr) { // no microbatch of nothing
      layout.microbatches = (left + at_once - 1) / at_once;
    }
    auto batches = load_batches(*session.corpus, split, evaluated.samples, layout);
    leave_out(batches, samples);
    means.add(forward_only(session.passes(), batches));
    evaluated.samples += std::min(left, layout.global());
    evaluated.losses = means.values();
    if (progress) {
      progress(evaluated);
    }
  }
  return evaluated;
}

} // namespace

std::vector<LossValue> evaluate_split(const Session& session, Split split) {
  return evaluate_split(session, split, {}).losses;
}

Evaluated evaluate_split(const Session& session, Split split, const EvaluationProgress& progress) {
  const int64_t batches = std::max<int64_t>(1, session.recipe.train.eval_iters);
  return evaluate(session, split, batches * session.layout().global(), progress);
}

Evaluated
evaluate_whole_split(const Session& session, Split split, const EvaluationProgress& progress) {
  return evaluate(session, split, session.corpus->size(split), progress);
}

} // namespace mh
