#pragma once
/// Checkpoints: a directory of safetensors files and a manifest, written whole or not at all, of
/// global tensors of which each rank holds slices. A checkpoint written under one layout loads
/// under any other.
///
///     mh::StepFolder folder(storage, "runs/a/checkpoints", warn);
///     folder.recover();
///     mh::write_checkpoint(storage, folder, step, state, slices);
///     folder.keep_last(3, mh::whole_checkpoint(storage));
///     ...
///     const auto step = mh::load_newest(storage, folder, folder.steps(),
///         [&](mh::Checkpoint& saved) { saved.require_fit(slices); },
///         [&](mh::Checkpoint& saved) { saved.load(slices); });

#include "core/checkpoint/manifest.hpp"
#include "core/checkpoint/tensors.hpp"
#include "core/mesh/agree.hpp"
#include "core/storage/step_folder.hpp"

#include <ATen/core/Tensor.h>

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace mh {

/// This rank's part of a global tensor: a parameter, a master weight, an optimizer's state.
struct Slice {
  std::string name;
  std::vector<int64_t> global_shape;
  std::vector<int64_t> offset;
  at::Tensor local; ///< any device and strides; its sizes are the slice's shape
};

/// Writes and commits a checkpoint. A slice that several ranks hold is written by one of them. The
/// state is rank 0's.
///
/// Throws:  mh::Error, the same on every rank, if any rank failed, or if the slices do not cover a
/// tensor
///          exactly; the checkpoints before stay as they were
/// Ranks:   all of `ranks`, with the same step; only rank 0's folder is used
void write_checkpoint(
    Storage& storage,
    StepFolder& folder,
    int64_t step,
    const nlohmann::json& state,
    const std::vector<Slice>& slices,
    const Ranks& ranks = {}
);

/// How `load` treats a slice of another dtype than the saved tensor's.
enum class OtherDtype : uint8_t { refuse, convert };

class Checkpoint {
public:
  /// Reads the manifest.
  ///
  /// Throws:  mh::Error (exit code 5), as all functions do, naming the file and the tensor
  Checkpoint(Storage& storage, Path directory);

  [[nodiscard]] const Manifest& manifest() const { return manifest_; }

  /// Reads every byte and compares it with the manifest.
  void verify();

  /// Fills the slices. Names, global shapes and dtypes are checked before any value changes. Each
  /// chunk is read once, with its checksum: where one is damaged, some slices have new values; load
  /// another checkpoint into all of them, or give up.
  void load(const std::vector<Slice>& slices, OtherDtype other = OtherDtype::refuse);

  /// Checks the names, global shapes and dtypes of the slices; reads no data.
  ///
  /// Throws:  mh::Error naming the first tensor that differs
  void require_fit(const std::vector<Slice>& slices, OtherDtype other = OtherDtype::refuse) const;

  /// Tensors of the checkpoint that none of the ranks' slices asks for.
  ///
  /// Ranks:   all of `ranks`; each gives its own slices
  [[nodiscard]] std::vector<std::string>
  unused(const std::vector<Slice>& slices, const Ranks& ranks = {}) const;

  /// A whole global tensor on the CPU.
  [[nodiscard]] at::Tensor tensor(const std::string& name);

private:
  struct Need;
  [[nodiscard]] TensorFile open(const std::string& file) const;
  [[nodiscard]] const TensorInfo&
  locate(const TensorFile& file, const StoredTensor& tensor, const Chunk& chunk) const;
  /// What the slices need, by file.
  [[nodiscard]] std::map<std::string, std::vector<Need>>
  needs(const std::vector<Slice>& slices, OtherDtype other) const;

  Storage& storage_;
  Path directory_;
  Manifest manifest_;
};

/// Loads the newest of `steps` that is whole, and says each newer one that is not. Nothing is read
/// twice: a checkpoint turns out to be damaged while it is loaded, and the one before it is loaded
/// over it.
///
/// `judge` looks at a checkpoint's manifest; what it throws is thrown on, as the checkpoint is
/// whole and not for this run. Where `load` throws, the checkpoint is damaged.
///
/// Throws:  mh::Error (exit code 5) if there are steps and none is whole
/// Ranks:   all, `judge` too; rank 0's steps count
[[nodiscard]] std::optional<int64_t> load_newest(
    Storage& storage,
    const StepFolder& folder,
    const std::vector<int64_t>& steps,
    const std::function<void(Checkpoint&)>& judge,
    const std::function<void(Checkpoint&)>& load,
    const Ranks& ranks = {}
);

/// For `StepFolder`: passes a directory whose every byte is as it was written.
[[nodiscard]] StepFolder::Verify whole_checkpoint(Storage& storage);

} // namespace mh
