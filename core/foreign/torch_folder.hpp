#pragma once
/// Folders with a state_dict of torch.save: `pytorch_model.bin`, several such files with an index,
/// or one file of any name that ends in .pt, .pth or .bin.

#include "core/foreign/torch_tensors.hpp"
#include "megahost/checkpoint_format.hpp"
#include "megahost/schema.hpp"

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace mh {

/// The tensors of all files. Tensors of dicts in dicts are named by all keys: "model.layer.weight".
class TorchFolder final : public CheckpointReader {
public:
  /// Reads the files' pickles, and no tensor.
  ///
  /// Throws:  mh::Error (exit code 5), as all functions do, naming the file
  TorchFolder(Storage& storage, const Path& folder);

  /// The tensors of these files of a folder, each named "FILE:KEYS", those of its subfolders too.
  /// Tensors of NeuronX's `xser` lie in files of their own, FILE.tensors/tensor_0.pt.
  TorchFolder(Storage& storage, const Path& folder, const std::vector<std::string>& files);

  [[nodiscard]] const std::vector<TorchFile>& files() const { return files_; }

  [[nodiscard]] Path path() const override { return folder_; }

  [[nodiscard]] const std::vector<CheckpointTensor>& tensors() const override { return tensors_; }

  [[nodiscard]] TensorNames names() const override { return TensorNames::hugging_face; }

  /// Names may be without what the state_dict is within, and without a bare model's prefix.
  [[nodiscard]] const CheckpointTensor* find(std::string_view name) const override;

  void read(std::span<const Slice> slices) override;
  [[nodiscard]] Verification verify(const std::function<void(uint64_t bytes)>& read) override;

private:
  struct Place {
    size_t file = 0;
    TorchTensor tensor;
    std::string apart{}; ///< the file that holds it alone; empty: it is in `file`
  };

  void open(const std::vector<std::string>& names, bool with_file);
  void add(const PickleValue& value, const std::string& name, size_t file);
  /// Opened anew each time: there may be more of them than a process may have open.
  [[nodiscard]] TorchFile file_apart(const std::string& name) const;
  void add_apart(const PickleValue& reference, const std::string& name, size_t file);
  void list(bool tied);

  Storage& storage_;
  Path folder_;
  std::vector<std::string> file_names_;
  std::vector<TorchFile> files_;
  std::map<std::string, Place, std::less<>> places_;
  std::vector<CheckpointTensor> tensors_;
};

class TorchFormat final : public CheckpointFormat {
public:
  struct Config {};

  static void fields(Fields<Config>&) {}

  TorchFormat(const Config&, const Args& args)
      : storage_(args.storage) {}

  [[nodiscard]] std::string about() const override { return "folder with a file of torch.save"; }

  [[nodiscard]] std::string mark() const override { return "pytorch_model.bin"; }

  [[nodiscard]] bool detect(const Path& folder) const override;
  [[nodiscard]] std::unique_ptr<CheckpointReader>
  open(const Path& folder, std::optional<int64_t> step) const override;
  [[nodiscard]] std::optional<std::string> config(const Path& folder) const override;

private:
  Storage& storage_;
};

/// A tensor by the name that a model's mapping to Hugging Face gives it: as it is, without its
/// first part (of a bare model), or within what state_dicts are saved within ("model.").
[[nodiscard]] const CheckpointTensor*
find_within(const CheckpointReader& saved, std::string_view name);

/// False for what a training program keeps next to its weights, by the name's first part.
[[nodiscard]] bool is_weight_name(std::string_view name);

} // namespace mh
