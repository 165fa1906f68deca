#pragma once
/// Microbatches from a corpus: a pure function of the number of samples consumed.

#include "megahost/context.hpp"
#include "megahost/corpus.hpp"
#include "megahost/export.hpp"
#include "megahost/recipe.hpp"

#include <cstdint>
#include <deque>
#include <functional>
#include <future>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace mh {

/// How the samples of a step are sharded.
struct BatchLayout {
  int64_t seq = 0;
  int64_t micro = 1;        ///< samples of one microbatch on one data rank
  int64_t microbatches = 1; ///< per step and rank
  int64_t data_ranks = 1;
  int64_t data_rank = 0;
  /// The tokens of a sequence's `length` that this rank sees; empty: all.
  std::function<std::vector<TokenRun>(int64_t length)> tokens{};
  Sequences sequences{};           ///< sequences that samples have in addition to `seq` tokens
  std::vector<ArraySpec> arrays{}; ///< arrays that the corpus declares; empty: it is not compared
  std::vector<ShiftedArray> shifted{}; ///< arrays that are made of those
  int64_t vocab = 0; ///< ids of the model's tokens are below; 0: ids are not looked at

  /// Tokens of all sequences.
  [[nodiscard]] int64_t tokens_per_sample() const;

  /// Samples of one step over all ranks.
  [[nodiscard]] int64_t global() const { return micro * microbatches * data_ranks; }
};

/// The samples of a run's steps, each number once.
[[nodiscard]] MH_API std::set<int64_t> batch_sizes(const Recipe::Batch& batch);

/// The samples of one epoch of a split (Corpus::size); an error names the corpus's plugin.
[[nodiscard]] MH_API int64_t samples_of(const Corpus& corpus, Split split);

/// A corpus's line about itself.
[[nodiscard]] MH_API std::string summary_of(const Corpus& corpus);

/// The microbatches of one step on this rank, in host memory. Microbatch m holds the samples
/// `first + m * micro * data_ranks + data_rank * micro + 0 .. micro-1`, in the order of Megatron.
///
/// Arrays that are declared on axis::seq are cut to the tokens of their sequence that this rank
/// sees; others stay whole. `tokens`, and `NAME_tokens` of another sequence, hold ids of the model.
/// Shapes:  every array [length, micro]
/// Throws:  mh::Error (exit code 5) if the corpus fails, its arrays differ between samples, or are
///          not those that it declares
[[nodiscard]] MH_API std::vector<Batch>
load_batches(const Corpus& corpus, Split split, int64_t first, const BatchLayout& layout);

/// The rows of a whole array [length, ...] that a rank of this layout sees: all, or those of its tokens.
[[nodiscard]] MH_API at::Tensor
own_rows(const at::Tensor& whole, const std::string& name, const BatchLayout& layout);

/// Adds the shifted arrays of those that are there; `arrays` are of whole samples, [seq, samples].
MH_API void add_shifted(
    const std::vector<ShiftedArray>& shifted, std::map<std::string, at::Tensor, std::less<>>& arrays
);

/// The same batch with its arrays on `device`; the host does not wait for a GPU.
[[nodiscard]] Batch to_device(const Batch& batch, at::Device device);

/// Loads the microbatches of next steps while this one computes. Its result depends on `first`
/// only.
class Prefetcher {
public:
  /// `layout` says how the step that starts at a sample is sharded.
  using Layout = std::function<BatchLayout(int64_t first)>;

  /// steps:    that are loaded ahead
  /// threads:  that load them, a step each; as many as steps if absent
  Prefetcher(
      const Corpus& corpus,
      Split split,
      Layout layout,
      int64_t steps = 1,
      std::optional<int64_t> threads = {}
  );
  ~Prefetcher();
  Prefetcher(const Prefetcher&) = delete;
  Prefetcher& operator=(const Prefetcher&) = delete;

  /// The step that starts at sample `first`; starts on those after it, of which `left` are wanted.
  [[nodiscard]] std::vector<Batch> get(int64_t first, int64_t left);

private:
  struct Step {
    int64_t first, next; ///< samples
    std::shared_future<std::vector<Batch>> batches;
  };

  const Corpus& corpus_;
  Split split_;
  Layout layout_;
  int64_t steps_, threads_;
  std::deque<Step> ahead_; ///< each begins where the one before it ends
};

} // namespace mh
