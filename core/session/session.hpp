#pragma once
/// Everything a run is made of, built from a recipe in one direction: device, mesh, rules,
/// tokenizer, corpus, architecture, model.

#include "core/mesh/processes.hpp"
#include "core/model/deferred_values.hpp"
#include "core/step/batches.hpp"
#include "core/step/stages.hpp"
#include "core/step/step.hpp"
#include "core/step/update_schedule.hpp"
#include "megahost/architecture.hpp"
#include "megahost/corpus.hpp"
#include "megahost/device.hpp"
#include "megahost/host.hpp"
#include "megahost/mesh.hpp"
#include "megahost/model.hpp"
#include "megahost/optimizer.hpp"
#include "megahost/placement.hpp"
#include "megahost/recipe.hpp"
#include "megahost/recompute.hpp"
#include "megahost/tokenizer.hpp"

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace mh {

/// Local vocabulary rows are padded to a multiple of this, for the GEMMs' sake.
inline constexpr int64_t kVocabMultiple = 128;

/// The order of the members is the order in which they are made.
struct MH_API Session {
  Recipe recipe;
  std::unique_ptr<Device> device;   ///< null in a plan
  at::Device place = at::kCPU;      ///< device of tensors
  at::DeviceType target = at::kCPU; ///< device type that kernels are chosen for
  Mesh mesh;
  std::unique_ptr<HangWatch> watch; ///< watches ranks that are processes
  Rules rules;
  std::unique_ptr<Tokenizer> tokenizer;
  std::unique_ptr<Architecture> architecture;
  std::vector<ArraySpec> arrays;  ///< arrays that the corpus declares; empty without a corpus
  std::unique_ptr<Corpus> corpus; ///< null in a plan, and where the data come from elsewhere
  std::unique_ptr<RecomputePolicy> recompute;
  std::unique_ptr<Optimizer> optimizer;
  std::unique_ptr<UpdateSchedule> schedule;
  at::ScalarType dtype = at::kFloat;
  std::vector<LayoutChunk> stages;    ///< contents of each chunk of the pipeline; empty: one stage
  std::unique_ptr<Pipeline> pipeline; ///< null: one stage
  std::unique_ptr<Model> model;
  bool initialised = false; ///< parameters that no checkpoint fills have initial values
  std::unique_ptr<DeferredValues> deferred; ///< null: the model has its values
  std::unique_ptr<Gradients> gradients;     ///< null before `allocate_gradients`
  /// See RecomputePolicy::Args; empty if it is not known.
  std::function<int64_t(const std::vector<Keep>&)> peak_memory;
  bool kept_by_memory = false; ///< the policy asked for it to choose what blocks keep

  /// Makes the gradients of training, sharded as `parallel.zero` says. Parameters were frozen
  /// before.
  void allocate_gradients();

  /// Lets this process multiply float32 matrices on the CPU as `choose` says on the first rank
  /// (`ops::gemm_choice_of`); where the session has none, no rank is asked.
  ///
  /// Returns: the GEMMs that LibTorch multiplies
  std::string share_gemm(const std::function<std::string()>& choose) const;

  [[nodiscard]] Passes passes() const {
    return {
        .mesh = mesh,
        .rules = rules,
        .model = *model,
        .device = place,
        .pipeline = pipeline.get(),
        .gradients = gradients.get(),
        .target = target};
  }

  /// Blocks of the model that this rank holds, without embedding and head.
  [[nodiscard]] int64_t layers() const;

  /// The layout of the step that follows `consumed` samples.
  [[nodiscard]] BatchLayout layout(int64_t consumed) const;

  /// The layout of full batches.
  [[nodiscard]] BatchLayout layout() const {
    return layout(recipe.batch.rampup_samples.value_or(0));
  }

  /// Tokens of one sample, of all sequences that the model reads.
  [[nodiscard]] int64_t tokens_per_sample() const { return layout().tokens_per_sample(); }

  /// FLOPs of training one sample of the global model, recomputation not counted.
  [[nodiscard]] double flops_per_sample() const;
  /// Vocabulary with the dummy entries that padding adds.
  [[nodiscard]] int64_t padded_vocab() const;
};

/// The optimizer of a recipe.
///
/// Throws:  mh::Error where it does not offer the recipe's state in bf16 or stochastic rounding
[[nodiscard]] MH_API std::unique_ptr<Optimizer>
make_optimizer(const Recipe::Optimizer& recipe, Host& host);

/// A step whose peak memory is to be predicted.
struct StepQuestion {
  int64_t stage = 0;             ///< stage of the pipeline
  const std::vector<Keep>& keep; ///< activations that each of the stage's blocks saves
};

/// Bytes of a rank's tensors at the peak of such a step.
using StepPeak = std::function<int64_t(const StepQuestion&)>;

struct SessionOptions {
  bool corpus = true;        ///< false where the data come from elsewhere
  bool initialise = true;    ///< false where weights are loaded anyway
  bool partial = false;      ///< parameters may keep initial values where others are loaded
  bool whole_splits = false; ///< the corpus leaves out no token of a split, see Corpus::Args
  bool trains = true; ///< false: GEMMs of a run in FP8 are in bf16, its scales are not at hand
  /// Hands over the recipe's device where it is open; empty: it is opened.
  std::function<std::unique_ptr<Device>()> device{};
  const Processes* processes = nullptr; ///< processes of the run; null: this process is alone
  const Mesh* mesh = nullptr;           ///< this rank's place, where ranks are threads
  std::optional<at::ScalarType> dtype = std::nullopt; ///< instead of the recipe's precision
  /// Tensors lie on the Meta device, and kernels are chosen for this one: nothing is computed, and
  /// no data are read.
  std::optional<at::DeviceType> planned_for = std::nullopt;
  /// The memory of a step, for policies that go by it; empty: not known.
  StepPeak step_peak{};
  /// The activations that each of this rank's blocks saves, instead of those of the recipe's
  /// policy.
  std::optional<std::vector<Keep>> keep = std::nullopt;
  /// Is told which rank the others wait for, by another thread; empty: not watched.
  HangWatch::Say warn{};
};

/// Throws:  mh::Error where the recipe asks for what is not there
/// Ranks:   all of the run
[[nodiscard]] MH_API std::unique_ptr<Session>
make_session(const Recipe& recipe, Host& host, const SessionOptions& options = {});

/// The mesh that the recipe's layout asks for on `world` ranks.
[[nodiscard]] MH_API MeshShape mesh_shape(const Recipe& recipe, int64_t world);

} // namespace mh
