#pragma once
/// A trial of a layout: a small model trains for a few steps on a given mesh, and what came of it
/// is compared with the same on one rank.

#include "core/mesh/threads.hpp"
#include "core/session/session.hpp"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <vector>

namespace mh {

/// The result of a trial, as the whole model's: the same under every layout but for rounding.
struct TrialResult {
  at::ScalarType dtype = at::kFloat; ///< dtype of weights and activations
  /// Numbers of the first step: each loss over items of the data by its name, and "gradient norm".
  std::map<std::string, double> numbers;
  double items = 0; ///< number of items that the losses are means of
  /// Differences by kind ("gradient", "value after sgd") and global name.
  std::map<std::string, std::map<std::string, at::Tensor>> tensors;
};

/// Samples of two documents and a tail of padding, some masked as a whole: the arrays that a model
/// declares ("tokens", "labels", "loss_mask"), "positions" and "segments". For each sequence NAME
/// that a model reads in addition there are "NAME_tokens", "NAME_positions" and "NAME_segments",
/// with the same documents.
class TrialCorpus : public Corpus {
public:
  TrialCorpus(const Architecture& architecture, int64_t seq_length);

  [[nodiscard]] const std::vector<ArraySpec>& arrays() const { return arrays_; }

  [[nodiscard]] int64_t size(Split) const override { return 1024; }

  [[nodiscard]] Sample sample(Split split, int64_t index) const override;

  [[nodiscard]] std::string summary() const override { return "samples of a trial"; }

private:
  /// Arrays of a sequence of so many tokens; `kind` tells its ids from others'.
  [[nodiscard]] Sample tokens_of(int64_t tokens_per_sample, int64_t index, uint64_t kind) const;

  int64_t vocab_, seq_length_;
  Sequences sequences_;
  std::vector<ArraySpec> arrays_;
};

/// The samples of a corpus for a model of fewer ids: those that the model lacks are taken modulo
/// its vocabulary.
class FoldedCorpus : public Corpus {
public:
  FoldedCorpus(const Corpus& corpus, int64_t vocab)
      : corpus_(corpus)
      , vocab_(vocab) {}

  [[nodiscard]] int64_t size(Split split) const override { return corpus_.size(split); }

  [[nodiscard]] Sample sample(Split split, int64_t index) const override;

  [[nodiscard]] std::string summary() const override { return corpus_.summary(); }

private:
  const Corpus& corpus_;
  int64_t vocab_;
};

struct TrialOptions {
  /// The dtype of weights and activations. Float16 has a constant loss scale; Float8_e4m3fn is the
  /// recipe's FP8: GEMMs of bf16 weights and activations that are rounded to it.
  at::ScalarType dtype = at::kFloat;
  double clip = 1.0; ///< norm to which the trial's own optimizers clip the gradient; 0: as it is
  /// In the first step ranks compare at the boundaries of layers what they should agree on.
  bool checking = true;
  int64_t steps = 2;              ///< steps of each optimizer; the second reads what the first left
  const Corpus* corpus = nullptr; ///< samples to fold and train on; null: TrialCorpus
  std::vector<ArraySpec> arrays{}; ///< arrays that `corpus` declares
  /// The recipe's optimizer at its learning rate, with its groups, decay and clipping; an `eps` is
  /// raised to 1e-3. Else SGD and AdamW of the trial's own.
  bool recipes_optimizer = false;
};

/// Runs this rank's part: a step's gradients, then some steps of each optimizer. Ranks that are
/// threads share `result`; a process gets the slices that it holds.
///
/// Ranks:   collective over the mesh
void run_trial(
    const Recipe& recipe,
    Host& host,
    const SessionOptions& where,
    const TrialOptions& options,
    TrialResult& result
);

/// Runs the trial on ranks that are threads of this process.
[[nodiscard]] MH_API TrialResult trial_on_threads(
    const Recipe& recipe, Host& host, const TrialOptions& options, const WrapBackend& wrap = nullptr
);

/// The largest difference of two results.
struct TrialDifference {
  double worst = 0;   ///< relative; infinite where one side lacks a tensor or is no number
  double allowed = 0; ///< at that place
  std::string where;  ///< "gradient of layers.0.attention.q.weight"

  [[nodiscard]] bool within() const { return worst <= allowed; }
};

/// Compares a layout with one rank: loss, gradient norm, and each tensor by the norm of the
/// difference over max(its norm, 1e-6 of the norm of all of its kind).
///
/// A difference up to `bound` is allowed, or up to 2 + 4 / sqrt(n) times what rounding alone does, n
/// the number of the losses, of which a few round alike by chance: the distance
/// between `one` and `rounding`, one rank in another number format (null: none), of this tensor in
/// whichever layer it is largest; if that format is coarser, times the ratio of unit roundoffs. A
/// tensor that lies below that floor is rounding itself: it may differ by 1e-8 of the floor in
/// float64, by all of it in others. Two numbers can be close by chance, so for losses and norm that
/// distance counts as at least what is left in a mean of n items when each is rounded once:
/// u / sqrt(n), u the unit roundoff of `one`'s format; and for tensors of a few
/// elements as at least the largest of its kind.
[[nodiscard]] MH_API TrialDifference compare_trials(
    const TrialResult& one, const TrialResult& other, double bound, const TrialResult* rounding
);

} // namespace mh
