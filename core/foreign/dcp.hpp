#pragma once
/// Folders of torch.distributed.checkpoint: `.metadata`, and chunks of tensors in `*.distcp`.
///
/// ```cpp
/// const mh::DcpFolder saved(storage, "outputs/checkpoint/step-1000");
/// mh::DcpFormat format({}, {.storage = storage});
/// format.write("runs/a", contents, ranks);   // runs/a/dcp/step-000000001000/.metadata
/// ```

#include "core/checkpoint/outlined.hpp"
#include "core/foreign/torch_tensors.hpp"
#include "core/formats/dcp_metadata.hpp"
#include "core/storage/step_folder.hpp"
#include "megahost/checkpoint_format.hpp"
#include "megahost/schema.hpp"

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace mh {

inline constexpr const char* kDcpSteps = "dcp"; ///< subfolder of a run's folder
/// The file that Megatron's torch_dist has in such a folder, written last: its names are not
/// PyTorch's.
inline constexpr const char* kTorchDistMark = "metadata.json";
/// The file that Megatron's torch_dist has first.
inline constexpr const char* kTorchDistCommon = "common.pt";
/// The object that is the run's state, as JSON in a text.
inline constexpr const char* kDcpStateName = "megahost.state";

/// One checkpoint, whoever wrote it.
class DcpFolder final : public CheckpointReader {
public:
  /// Reads `.metadata`, and the run's state if megahost wrote it.
  ///
  /// Throws:  mh::Error (exit code 5), as all functions do, naming the file and the tensor
  DcpFolder(Storage& storage, Path directory);

  [[nodiscard]] Path path() const override { return directory_; }

  [[nodiscard]] const std::vector<CheckpointTensor>& tensors() const override { return tensors_; }

  /// Our own if megahost wrote it, else those of the model's state_dict.
  [[nodiscard]] TensorNames names() const override;

  /// Finds a tensor by name. If a state_dict lies within another, as in {"model":
  /// model.state_dict()}, a name may lack the outer one's, and a bare model's its prefix.
  [[nodiscard]] const CheckpointTensor* find(std::string_view name) const override;

  /// Reads the rows that slices need of each chunk, once.
  void read(std::span<const Slice> slices) override;
  [[nodiscard]] std::vector<StoredBox> boxes() const override;

  /// Compares every entry of every zip with its checksum.
  [[nodiscard]] Verification verify(const std::function<void(uint64_t bytes)>& read) override;

  [[nodiscard]] std::string state() const override { return state_; }

private:
  [[nodiscard]] TorchFile open(const DcpPlace& place, const std::string& name);
  [[nodiscard]] TorchTensor
  locate(const TorchFile& file, const DcpTensor& tensor, const DcpChunk& chunk) const;

  Storage& storage_;
  Path directory_;
  std::optional<HeldFile> held_; // no other process removes what is read
  DcpMetadata metadata_;
  std::vector<CheckpointTensor> tensors_; // in the order of the metadata's
  std::string state_;
  std::pair<std::string, std::shared_ptr<ReadFile>> open_; // until another one is
};

/// The folder of one checkpoint, or a run's folder `dcp` with one for each step.
class DcpFormat final : public CheckpointFormat {
public:
  struct Config {};

  static void fields(Fields<Config>&) {}

  DcpFormat(const Config&, const Args& args)
      : storage_(args.storage) {}

  [[nodiscard]] std::string about() const override {
    return "folder of torch.distributed.checkpoint";
  }

  [[nodiscard]] std::string mark() const override { return ".metadata"; }

  [[nodiscard]] bool detect(const Path& folder) const override;
  [[nodiscard]] std::optional<std::vector<int64_t>> steps(const Path& folder) const override;
  [[nodiscard]] std::unique_ptr<CheckpointReader>
  open(const Path& folder, std::optional<int64_t> step) const override;
  [[nodiscard]] std::optional<std::string> config(const Path& folder) const override;
  [[nodiscard]] Path place(const Path& folder) const override;
  void
  recover(const Path& folder, const std::function<void(const std::string&)>& warn) const override;
  void
  write(const Path& folder, const CheckpointContents& contents, const Ranks& ranks) const override;
  void remove(const Path& folder, int64_t step) const override;

private:
  [[nodiscard]] StepFolder steps_in(const Path& folder, const StepFolder::Warn& warn = {}) const;

  Storage& storage_;
};

/// The place of an outline's values in a tensor of the folder.
struct DcpBox {
  std::string name;
  std::vector<int64_t> whole, offset, shape; ///< with as many elements as the outline
};

/// Writes a checkpoint of whole tensors, one of which is in memory at a time; `.metadata` comes
/// last.
///
/// places:  what each becomes a box of, several tensors of the same bytes too; empty: a tensor by
///          itself
/// Returns: bytes of the tensors
uint64_t write_dcp_tensors(
    Storage& storage,
    const Path& directory,
    const OutlinedTensors& tensors,
    const std::string& state,
    const std::function<std::vector<DcpBox>(const TensorOutline&)>& places = nullptr
);

} // namespace mh
