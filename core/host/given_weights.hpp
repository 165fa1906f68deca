#pragma once
/// A model's weights from where the user has them: a run of ours, or a Hugging Face folder.

#include "core/checkpoint/tensors.hpp"
#include "core/train/session.hpp"

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace mh {

struct GivenWeights {
  std::string words;         ///< "runs/quickstart, step 300", "Hugging Face folder gpt2"
  bool hugging_face = false; ///< parameters have their names there
};

/// Looks whether a folder can hold weights, before anything is read.
///
/// Throws:  mh::Error (exit code 5) if it is neither kind of folder
void require_weights(const std::filesystem::path& folder);

/// Fills a rank's parameters, from the newest checkpoint of a run that is whole or that of `step`.
///
/// Throws:  mh::Error (exit code 5) naming folder and tensor: neither kind of folder; a tensor is
///          missing, has another shape, or has no place in the model; or naming the fields in which
///          a Hugging Face folder's config.json describes another model
/// Ranks:   all of the session's
GivenWeights load_weights(
    const std::filesystem::path& folder,
    Session& session,
    Host& host,
    std::optional<int64_t> step = {}
);

/// The main gradients under the parameters' own names, or under Hugging Face's names and shapes.
[[nodiscard]] std::vector<NamedTensor> named_gradients(Session& session, bool hugging_face);

} // namespace mh
