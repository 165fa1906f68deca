#pragma once
/// Weights of a run as a Hugging Face folder, by the mapping with which such folders are read.
///
/// ```cpp
/// const auto counterpart = mh::hf_counterpart(*architecture, entry, fields);
/// const auto tensors = mh::mapped_tensors(
///     *saved, counterpart.tensors, mh::TensorNames::hugging_face, at::kBFloat16);
/// mh::write_hf_weights(storage, "out", tensors);
/// mh::put_text(storage, "out/config.json", counterpart.config.dump(2));
/// ```

#include "core/checkpoint/outlined.hpp"
#include "megahost/architecture.hpp"
#include "megahost/checkpoint_format.hpp"
#include "megahost/registry.hpp"
#include "megahost/value.hpp"

#include <nlohmann/json.hpp>

#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace mh {

/// The counterpart of a model at Hugging Face.
struct HfCounterpart {
  std::string model_type;        ///< "llama"
  std::vector<HfTensor> tensors; ///< sorted by their name
  nlohmann::ordered_json config; ///< the keys that decide numbers, and the model's class
};

/// Finds the first of the architecture's models whose config.json says exactly these fields.
///
/// `fields`:      of the section `model`, complete, with `vocab` and `seq_length`
/// `model_type`:  only this one will do; empty: any
/// Throws:  mh::Error (exit code 5) with what keeps each of them from it
[[nodiscard]] HfCounterpart hf_counterpart(
    const Architecture& architecture,
    const Registry::Entry& entry,
    const Table& fields,
    const std::string& model_type = ""
);

/// A run's weights under another program's names, each made when it is written.
///
/// dtype:  what floating numbers become; none: as they are saved
[[nodiscard]] OutlinedTensors mapped_tensors(
    CheckpointReader& saved,
    const std::vector<HfTensor>& maps,
    TensorNames names,
    std::optional<at::ScalarType> dtype
);

/// Writes `model.safetensors`, or several files with their index last. Tensor by tensor: in memory
/// is one, or all experts of one layer where they are saved together.
///
/// Throws:  mh::Error (exit code 5) naming a tensor that the checkpoint lacks or cannot read
void write_hf_weights(Storage& storage, const Path& folder, const OutlinedTensors& tensors);

} // namespace mh
