#pragma once
/// The subjects that `megahost check` checks, and a trial of one on ranks that are processes.

#include "core/cli/invocation.hpp"
#include "core/conformance/layout_trial.hpp"
#include "core/mesh/spawn.hpp"
#include "core/recipe/commands.hpp"
#include "core/recipe/layouts.hpp"
#include "megahost/corpus.hpp"
#include "megahost/host.hpp"
#include "megahost/tokenizer.hpp"

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace mh {

struct Precision {
  const char* name;
  at::ScalarType dtype;
  double bound;
  size_t other; ///< index of the format that tells what rounding alone does
};

/// FP8 of two layouts: an operand that differs in its last bit of bf16 is sometimes rounded to
/// another of FP8's values, so that layouts differ by about as much as FP8 itself rounds.
inline constexpr std::array<Precision, 5> kPrecisions{{
    {"float64", at::kDouble, 1e-12, 1},
    {"fp32", at::kFloat, 1e-5, 0},
    {"bf16", at::kBFloat16, 0, 1},
    {"fp16", at::kHalf, 0, 1},
    {"fp8", at::kFloat8_e4m3fn, 0, 1},
}};

/// The recipe that is checked, under any layout.
class Subject {
public:
  Subject(const Invocation& invocation, Host& host);

  /// Throws:  RecipeError where the model, or check's own rules, refuse the layout
  [[nodiscard]] Resolved under(const Layout& layout) const;

  /// One rank with whatever else the layout sets ("recompute.use"). A model that compares the
  /// samples of a microbatch with each other, which it says by an array on axis::batch, gets those
  /// of all the layout's data-parallel ranks at once: the same samples meet.
  [[nodiscard]] Resolved one_rank(const Layout& layout) const;

  /// The recipe's corpus and optimizer are tried, not the trial's own.
  [[nodiscard]] bool is_recipe() const { return !invocation_.has("--model"); }

  /// The recipe on one rank, with the vocabulary, the corpus and the tokenizer that it has.
  [[nodiscard]] Resolved with_data() const;

  /// Its files as ranks that are processes are handed them; empty for --model.
  [[nodiscard]] std::string handed() const;

  /// So many ranks of the command that asks, on this machine.
  [[nodiscard]] StartedRanks ranks(int64_t count) const;

private:
  enum class Data : uint8_t { made_up, of_recipe };

  [[nodiscard]] Resolved resolved(const Layout& layout, Data data) const;
  [[nodiscard]] bool compares_samples(const Recipe& recipe) const;
  [[nodiscard]] Loaded base(LoadOptions options) const;

  const Invocation& invocation_;
  Host& host_;
  int64_t samples_;
  std::optional<RecipeFiles> files_; // unless --model; evaluated once for all layouts
};

/// The tokenizer and data that trials of a subject train with.
struct TrialSubject {
  std::unique_ptr<Tokenizer> tokenizer; ///< tokenizer of the corpus
  std::unique_ptr<Corpus> corpus;       ///< null: the trial's own samples
  std::vector<ArraySpec> arrays;        ///< arrays that it declares
  bool recipes_optimizer = false;
  std::string description; ///< "corpus text with tokenizer byte, optimizer adamw, of the recipe"

  [[nodiscard]] TrialOptions options(const Precision& precision) const;
};

/// Opens the recipe's corpus, of which a few samples are read. One that is not here is replaced by
/// the trial's own samples, which the words say.
[[nodiscard]] TrialSubject trial_subject(const Subject& subject, Host& host);

/// Runs a layout as so many processes of this same command, and reads what they left behind.
[[nodiscard]] TrialResult trial_on_processes(
    const Subject& subject, const Layout& layout, const Precision& precision, int64_t ranks
);

/// This process is one rank of a trial.
int run_rank(const Subject& subject, Host& host);

} // namespace mh
