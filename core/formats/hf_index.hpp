#pragma once
/// `model.safetensors.index.json`: which file of a sharded Hugging Face model holds which tensor.
///
/// Source:  https://huggingface.co/docs/transformers/big_models, "Sharded checkpoints"

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace mh {

struct HfIndex {
  std::map<std::string, std::string> file_of; ///< tensor name to file name in the same folder
  std::vector<std::string> files;             ///< each file once, sorted
};

/// Throws:  mh::Error (exit code 5) if the text is no such index, or a file is not named by a bare
/// name
[[nodiscard]] HfIndex read_hf_index(std::string_view text, const std::string& file);

/// The text of such an index; the same for the same tensors.
[[nodiscard]] std::string
hf_index_text(const std::map<std::string, std::string>& file_of, uint64_t total_bytes);

/// Checks that the files hold exactly the tensors that the index says: none missing, none in
/// another file, and no others. `tensors_of` has the tensor names in each file's header.
///
/// Throws:  mh::Error (exit code 5) naming the first tensor and file that differ
void check_hf_index(
    const HfIndex& index,
    const std::map<std::string, std::vector<std::string>>& tensors_of,
    const std::string& file
);

} // namespace mh
