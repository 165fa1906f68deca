#pragma once
/// Whether a run may go on with a checkpoint: what decides its numbers must be the same.

#include "core/recipe/changes.hpp"
#include "core/session/session.hpp"
#include "core/train/checkpointing.hpp"
#include "megahost/host.hpp"

#include <map>
#include <string>
#include <vector>

namespace mh {

/// Sizes of the splits and a checksum of the first samples: what paths do not say of data,
/// as files move, and change in their place.
[[nodiscard]] std::string data_fingerprint(const Session& session);

/// The parts of a resumed run that are compared with a checkpoint.
struct ResumedRun {
  const Recipe& recipe;
  Host& host;                       ///< for the plugins' schemas
  std::string folder;               ///< folder of its checkpoints
  std::string data;                 ///< `data_fingerprint`
  int64_t vocab = 0;                ///< tokens that its tokenizer knows
  std::vector<std::string> allowed; ///< keys and sections of --allow-change
};

/// Compares a checkpoint with the recipe, key by key. Returns sentences about what has changed and
/// may.
///
/// Throws:  mh::Error naming each key that must stay the same and is not, with both values, and the
///          ways on that the tensors allow; or the tensors for which the model has no place
[[nodiscard]] std::vector<std::string>
judge_checkpoint(const ResumedRun& run, const Progress& saved, const TensorFit& fit);

/// Keys of `model` and `tokenizer` that a recipe has otherwise than the one whose weights it is
/// given; none if it names another architecture and means it. `sections`: what the checkpoint kept,
/// see `section_texts`; `vocab`: tokens that the recipe's tokenizer knows.
[[nodiscard]] std::vector<KeyChange> other_model(
    const Recipe& recipe,
    Host& host,
    const std::map<std::string, std::string>& sections,
    int64_t vocab
);

/// "model.heads 4 (checkpoint 8), model.window 64 (checkpoint not set)"
[[nodiscard]] std::string texts_of(const std::vector<KeyChange>& changes);
/// " --allow-change model.heads --allow-change model.window"
[[nodiscard]] std::string allowing(const std::vector<KeyChange>& changes);

} // namespace mh
