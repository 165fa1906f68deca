#pragma once
/// A training run from its recipe to its last line.
///
/// ```cpp
/// mh::TrainSummary summary = mh::train(recipe, host, {.resume = mh::Resume::yes}, output);
/// ```

#include "core/draw/output.hpp"
#include "core/mesh/processes.hpp"
#include "core/records/profile.hpp"
#include "core/session/session.hpp"
#include "core/train/device_step.hpp"
#include "megahost/export.hpp"
#include "megahost/host.hpp"
#include "megahost/recipe.hpp"

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace mh {

/// Whether a run goes on from the newest whole checkpoint in its folder.
enum class Resume : uint8_t {
  no,
  yes,   ///< refused where there is none
  if_any ///< a new run begins where there is none: for launchers that start a run again
};

struct TrainOptions {
  Resume resume = Resume::no;
  /// Keys and sections of the recipe that a resumed run may have otherwise than its checkpoint,
  /// though they decide its numbers.
  std::vector<std::string> allow_change{};
  bool folder_named = false; ///< the command line names the folder, and not the recipe alone
  bool closing = true;       ///< curve, sample and suggestions at the end
  std::string
      recipe_text{}; ///< the resolved recipe with origins, kept in the run folder as recipe.toml
  std::string program = "megahost"; ///< how the user called the program, for suggestions
  /// How the user told the recipe: {"a.lua", "--set", "train.iters=9"}; empty: the run's own copy.
  std::vector<std::string> recipe_words{};
  double age = 0;                     ///< seconds that this process has run when it begins to train
  bool debug = false;                 ///< names the first operation that makes a NaN or Inf
  std::optional<StepRange> profile{}; ///< steps to profile, into folder `profile` of the run
  const Processes* processes = nullptr; ///< processes of the run; null: this process is alone
  const Mesh* mesh = nullptr; ///< the run's, if ranks are threads; its plugins were opened before
  bool checking = false;      ///< ranks compare at layers' boundaries what they should agree on
  /// The memory of a step, for policies that go by it and to compare the first step with; empty: it
  /// is not known.
  StepPeak step_peak{};
  /// Called on every rank when its set-up is over, with the run's folder.
  std::function<void(const std::filesystem::path& folder)> started{};
  /// FLOP/s that GEMMs of a type reach on this CPU, measured; null: not measured.
  std::function<double(at::ScalarType)> measured_peak{};
  /// The float32 GEMM of this machine (`ops::gemm_choice_of`), asked on rank 0 for all; null: own.
  std::function<std::string()> gemm{};
  /// The step of devices that run programs; empty: they are refused.
  MakeDeviceStep device_step{};
  std::function<std::unique_ptr<Device>()> device{}; ///< SessionOptions::device
};

struct TrainSummary {
  int64_t step = 0;
  std::string reason; ///< "finished", "train.exit_minutes", "train.exit_iters", "SIGTERM", ...
  std::filesystem::path folder;
  std::optional<double> loss; ///< loss of the last step
  std::optional<double> validation_loss;
};

/// Trains; a new run starts from what the recipe's section `load` names. Every rank calls it; rank 0 speaks and keeps the run's folder. A fresh run takes the
/// recipe's run folder, or the first free one of DIR-2, DIR-3, ... if that holds a run already; a
/// resumed one takes the last of them, and writes nothing there before its checkpoint is found to
/// be of the same recipe (core/train/resume.hpp).
///
/// Throws:  mh::Error with exit code 6 when loss or gradients are no finite numbers (the state
/// before that
///          step is saved), 5 if the last checkpoint cannot be written, and what building the run
///          throws
[[nodiscard]] MH_API TrainSummary
train(const Recipe& recipe, Host& host, const TrainOptions& options, Output& output);

} // namespace mh
