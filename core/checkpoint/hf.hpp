#pragma once
/// A Hugging Face model folder: `config.json` and `model.safetensors`, or several files with an
/// index.

#include "core/checkpoint/tensors.hpp"
#include "megahost/architecture.hpp"
#include "megahost/checkpoint_format.hpp"
#include "megahost/schema.hpp"

#include <ATen/core/Tensor.h>

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace mh {

class HfFolder final : public CheckpointReader {
public:
  /// Opens the files and checks every header and the index; no tensor is read yet.
  ///
  /// Throws:  mh::Error (exit code 5) if there are no safetensors files, or a file breaks its
  /// format
  HfFolder(Storage& storage, const Path& folder);

  [[nodiscard]] Path path() const override { return folder_; }

  [[nodiscard]] const std::vector<CheckpointTensor>& tensors() const override { return tensors_; }

  [[nodiscard]] TensorNames names() const override { return TensorNames::hugging_face; }

  /// Some checkpoints are of the bare model: their names lack the prefix "transformer." or
  /// "model.".
  [[nodiscard]] const CheckpointTensor* find(std::string_view name) const override;

  /// Reads the rows that a slice needs of its tensor's first dimension, and no others.
  void read(std::span<const Slice> slices) override;

private:
  struct Place {
    std::shared_ptr<const TensorFile> file;
    TensorInfo info;
  };

  /// Opens a file and enters its tensors; returns their names.
  std::vector<std::string> add(Storage& storage, const std::string& file);

  Path folder_;
  std::map<std::string, Place, std::less<>> places_;
  std::vector<CheckpointTensor> tensors_;
};

/// A tensor of ours, or what is left of it after its first indices.
struct HfPart {
  std::string ours;
  std::vector<int64_t> at;
};

/// The parts that a tensor of another program is concatenated of, in this order.
[[nodiscard]] std::vector<HfPart> parts_of(const HfTensor& map);

/// An architecture's mapping to another program's names; none for its own.
[[nodiscard]] std::vector<HfTensor> mapping_of(const Architecture& architecture, TensorNames names);

/// "Hugging Face", "Megatron-LM".
[[nodiscard]] const char* program_of(TensorNames names);

/// Hugging Face's tensor of ours, which `ours` gives by their names; no copy of a single one.
[[nodiscard]] at::Tensor
hf_tensor(const HfTensor& map, const std::function<at::Tensor(const std::string& name)>& ours);

/// False for constants of old checkpoints, for an output layer that is the embedding, and for what a
/// model sees images with, which is left out of its language model.
[[nodiscard]] bool is_hf_weight(const std::string& name, bool tied);

/// Whether a tensor is one of a module of multi-token prediction, which a recipe asks for or does
/// without: of DeepSeek-V3 one of the layers behind the `layers` of the model, of NemotronH "mtp.*".
[[nodiscard]] bool is_of_further_prediction(std::string_view name, std::optional<int64_t> layers);

/// The text of a folder's config.json, if it has one.
[[nodiscard]] std::optional<std::string> hf_config_text(Storage& storage, const Path& folder);

/// Whether a config.json says that the output layer is the embedding. `where` names it in messages.
[[nodiscard]] bool
ties_embeddings(const std::optional<std::string>& config, const std::string& where);

class HuggingFaceFormat final : public CheckpointFormat {
public:
  struct Config {};

  static void fields(Fields<Config>&) {}

  HuggingFaceFormat(const Config&, const Args& args)
      : storage_(args.storage) {}

  [[nodiscard]] std::string about() const override { return "Hugging Face folder"; }

  [[nodiscard]] std::string mark() const override { return "model.safetensors"; }

  [[nodiscard]] bool detect(const Path& folder) const override;
  [[nodiscard]] std::unique_ptr<CheckpointReader>
  open(const Path& folder, std::optional<int64_t> step) const override;
  [[nodiscard]] std::optional<std::string> config(const Path& folder) const override;

private:
  Storage& storage_;
};

} // namespace mh
