#pragma once
/// A model's weights from where the user has them: a run of ours, a Hugging Face folder, or what
/// else a plugin reads.

#include "core/checkpoint/detect_format.hpp"
#include "core/checkpoint/mapped_slices.hpp"
#include "core/checkpoint/tensor_match.hpp"
#include "core/checkpoint/tensors.hpp"
#include "core/session/session.hpp"
#include "core/step/weights.hpp"
#include "megahost/checkpoint_format.hpp"
#include "megahost/export.hpp"

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace mh {

/// A checkpoint that was judged, and is read tensor by tensor.
struct LaterWeights {
  FolderFormat format; ///< outlives the reader
  std::unique_ptr<CheckpointReader> saved;
  std::map<std::string, MappedSlices>
      slices; ///< by the stored tensor of the Meta device that they fill
};

struct GivenWeights {
  std::string description;              ///< "runs/quickstart, step 300", "Hugging Face folder gpt2"
  TensorNames names = TensorNames::own; ///< names of parameters there
  std::optional<int64_t> step{};        ///< the checkpoint that was read, of a folder with steps
  std::string state{};                  ///< see CheckpointReader::state
  std::string arguments{};              ///< see CheckpointReader::arguments
  bool has_optimizer = false; ///< `WeightsWanted::weights` got all of the optimizer's state
  /// Sentences about what was loaded and what was not, where not everything need be.
  std::vector<std::string> notes{};
};

/// The choice among a folder's weights.
struct WeightsWanted {
  std::string format{};          ///< a format's name; empty: the one that knows the folder
  std::optional<int64_t> step{}; ///< else the newest checkpoint that is whole
  /// Keys and sections in which the recipe may differ from that of a run whose weights they are.
  std::vector<std::string> allow_change{};
  TensorMatch match{};  ///< the tensors that are loaded, and their names there; see Recipe::Load
  std::string advice{}; ///< further help where a tensor does not fit
  bool strict = true;   ///< false: what only one side has is said, and not refused
  /// The destination in place of the model's parameters: a run's master weights and the state of its
  /// optimizer. Another program's weights come from its masters ("optimizer.master.NAME") where it
  /// has some. `Weights::publish` comes after it.
  const Weights* weights = nullptr;
  /// Gets what would be read in place of reading it, of `weights` on the Meta device; then the
  /// optimizer's state may be missing. Ranks:  one
  std::function<void(LaterWeights later)> later{};
};

/// The wishes of a recipe's section `load`.
[[nodiscard]] WeightsWanted
weights_wanted(const Recipe::Load& load, const std::vector<std::string>& allow_change);

/// Fills a rank's parameters.
///
/// Throws:  mh::Error (exit code 5) naming folder and tensor: no format knows the folder; a tensor
///          is missing, has another shape, or has no place in the model; or naming the fields in
///          which the folder's config.json or the run's recipe describes another model
/// Ranks:   all of the session's
MH_API GivenWeights load_weights(
    const std::filesystem::path& folder,
    Session& session,
    Host& host,
    const WeightsWanted& wanted = {}
);

/// The main gradients under the parameters' own names, or under another program's
/// names and shapes.
[[nodiscard]] std::vector<NamedTensor> named_gradients(Session& session, TensorNames names);

} // namespace mh
