#pragma once
/// Names of NeuronX Distributed's files and tensors.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace mh {

inline constexpr std::string_view kXserModel = "model"; ///< folder of the ranks' files
inline constexpr std::string_view kXserBegun = "checkpoint", kXserDone = "done";
inline constexpr std::string_view kXserDataRank = "dp_rank_00_"; ///< beginning of ranks' files

/// A tensor by the end of its name, from the layer's on: the tensors of Hugging Face that each rank's
/// part of it joins, in equal parts along dimension 0, and the dimension that ranks split.
struct XserTensor {
  std::string_view ending;
  std::vector<std::string_view> parts{}; ///< endings, too; none: it is the one of the same name
  int64_t dim = 0;                       ///< -1: each rank has all of it
  bool is_written = true;                ///< false: a form that is only read
};

/// The tensors of Llama.
[[nodiscard]] const std::vector<XserTensor>& xser_tensors();

/// The layer of "model.layers.3.mlp.down_proj.weight"; -1 of another name.
[[nodiscard]] int64_t hf_layer(std::string_view name);

/// "model.layers.3" of the name "model.layers.3.mlp.down_proj.weight" with the ending
/// ".mlp.down_proj.weight"; "" of a name that is the ending; nothing of others.
[[nodiscard]] std::optional<std::string>
before_ending(std::string_view name, std::string_view ending);

/// "step_100", the folder of one checkpoint.
[[nodiscard]] std::string xser_folder(int64_t step);
/// A rank's file, relative to the checkpoint's folder.
[[nodiscard]] std::string xser_file(int64_t tensor, int64_t pipeline);

} // namespace mh
