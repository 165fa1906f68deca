#include "core/session/evaluate.hpp"

#include "core/base/number_text.hpp"
#include "megahost/error.hpp"

#include <algorithm>

namespace mh {

void require_evaluation(const Session& session) {
  const auto& train = session.recipe.train;
  if (train.eval_interval > 0 && samples_of(*session.corpus, Split::valid) == 0) {
    throw Error(
        "train.eval_interval asks for evaluation, but the validation split holds no sample (" +
            summary_of(*session.corpus) + ")",
        "give data.split a larger second number, or set train.eval_interval = 0",
        exit_code::data
    );
  }
}

std::string_view name_of(Split split) {
  return split == Split::train ? "training" : split == Split::valid ? "validation" : "test";
}

std::string repeated_samples(const Session& session, Split split) {
  const int64_t size = samples_of(*session.corpus, split);
  const int64_t wanted = session.recipe.train.eval_iters * session.layout().global();
  const bool whole = session.corpus->evaluation() == Corpus::Evaluation::whole;
  if (size == 0 || wanted <= size || whole) {
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

/// Samples of a split that are evaluated one after the other.
struct SampleRange {
  int64_t first = 0;
  int64_t samples = 0;
};

/// A global batch at a time; adds to `ret_evaluated` and `ret_means`.
void evaluate(
    const Session& session,
    Split split,
    const SampleRange& range,
    const EvaluationProgress& progress,
    Means& ret_means,
    Evaluated& ret_evaluated
) {
  BatchLayout layout = session.layout();
  for (int64_t done = 0; done < range.samples; done += layout.global()) {
    const int64_t left = range.samples - done;
    const int64_t at_once = layout.micro * layout.data_ranks;
    if (left < layout.global() && session.pipeline == nullptr) { // no microbatch of nothing
      layout.microbatches = (left + at_once - 1) / at_once;
    }
    auto batches = load_batches(*session.corpus, split, range.first + done, layout);
    leave_out(batches, range.first + range.samples);
    ret_means.add(forward_only(session.passes(), batches));
    ret_evaluated.samples += std::min(left, layout.global());
    ret_evaluated.losses = ret_means.values();
    if (progress) {
      progress(ret_evaluated);
    }
  }
}

/// The range of a part that an evaluation reads: all of it, or the samples of one evaluation.
SampleRange range_of(const Session& session, const Corpus::Part& part, bool whole, int64_t done) {
  if (whole || session.corpus->evaluation() == Corpus::Evaluation::whole) {
    return {part.first, part.size};
  }
  const int64_t batches = std::max<int64_t>(1, session.recipe.train.eval_iters);
  const int64_t samples = batches * session.layout().global();
  const int64_t begin =
      session.corpus->evaluation() == Corpus::Evaluation::onward ? done * samples : 0;
  return {part.first + begin, samples};
}

Evaluated evaluate(
    const Session& session,
    Split split,
    bool whole,
    int64_t done,
    const EvaluationProgress& progress
) {
  auto parts = session.corpus->parts(split);
  if (parts.empty()) {
    parts.push_back({"", 0, samples_of(*session.corpus, split)});
  }
  std::vector<SampleRange> ranges;
  Evaluated evaluated;
  for (const Corpus::Part& part : parts) {
    SampleRange range = range_of(session, part, whole, done);
    if (parts.size() > 1) { // the part's samples end where the next part's begin
      const int64_t begin = (range.first - part.first) % part.size;
      range = {part.first + begin, std::min(range.samples, part.size - begin)};
    }
    evaluated.of += range.samples;
    ranges.push_back(range);
  }
  Means all;
  std::vector<LossValue> named;
  for (size_t i = 0; i < parts.size(); ++i) {
    Means own;
    evaluate(session, split, ranges[i], progress, parts.size() == 1 ? all : own, evaluated);
    if (parts.size() == 1) {
      break;
    }
    all.add(own.values());
    for (LossValue loss : own.values()) {
      loss.name += "/" + parts[i].name;
      loss.main = false;
      named.push_back(std::move(loss));
    }
  }
  evaluated.losses = all.values();
  evaluated.losses.insert(evaluated.losses.end(), named.begin(), named.end());
  return evaluated;
}

} // namespace

std::vector<LossValue> evaluate_split(const Session& session, Split split, int64_t done) {
  return evaluate(session, split, false, done, {}).losses;
}

Evaluated evaluate_split(const Session& session, Split split, const EvaluationProgress& progress) {
  return evaluate(session, split, false, 0, progress);
}

Evaluated
evaluate_whole_split(const Session& session, Split split, const EvaluationProgress& progress) {
  return evaluate(session, split, true, 0, progress);
}

} // namespace mh
