#pragma once
/// Our own checkpoints: a folder of safetensors files and a manifest, written whole or not at all,
/// of global tensors of which each rank holds slices. A checkpoint written under one layout loads
/// under any other.
///
/// ```cpp
/// mh::StepFolder folder(storage, "runs/a/checkpoints", mh::kManifestName, warn);
/// folder.recover();
/// mh::write_checkpoint(storage, folder, step, state, slices);
/// // later, on any layout:
/// mh::Checkpoint(storage, folder.path(step)).load(slices);
/// ```

#include "core/checkpoint/tensors.hpp"
#include "core/formats/manifest.hpp"
#include "core/storage/step_folder.hpp"
#include "megahost/checkpoint_format.hpp"

#include <ATen/core/Tensor.h>

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace mh {

/// The slices that this rank writes: of the ranks that hold a slice, the one with the least to
/// write does.
///
/// Ranks:   all of `ranks`
[[nodiscard]] std::vector<size_t>
slices_to_write(std::span<const Slice> slices, const Ranks& ranks);

/// Writes a rank's slices into a step's folder, a file for each time that a name comes again, and
/// returns what a manifest says of them.
[[nodiscard]] Manifest
write_part(Storage& storage, const Path& directory, std::span<const Slice> slices, int64_t rank);

/// Writes and commits a checkpoint. A slice that several ranks hold is written by one of them. The
/// state is rank 0's.
///
/// Throws:  mh::Error, the same on every rank, if any rank failed, or if the slices do not cover a
///          tensor exactly; the checkpoints before stay as they were
/// Ranks:   all of `ranks`, with the same step; only rank 0's folder is used
void write_checkpoint(
    Storage& storage,
    StepFolder& folder,
    int64_t step,
    const nlohmann::json& state,
    std::span<const Slice> slices,
    const Ranks& ranks = {}
);

/// How `load` treats a slice of another dtype than the saved tensor's.
enum class OtherDtype : uint8_t { refuse, convert };

class Checkpoint final : public CheckpointReader {
public:
  /// Reads the manifest. A part of a checkpoint need not cover its tensors, but every slice that is
  /// read.
  ///
  /// Throws:  mh::Error (exit code 5), as all functions do, naming the file and the tensor
  Checkpoint(Storage& storage, Path directory, bool is_part = false);

  [[nodiscard]] const Manifest& manifest() const { return manifest_; }

  [[nodiscard]] Path path() const override { return directory_; }

  [[nodiscard]] const std::vector<CheckpointTensor>& tensors() const override { return tensors_; }

  [[nodiscard]] std::string state() const override { return manifest_.state.dump(); }

  void read(std::span<const Slice> slices) override { load(slices, OtherDtype::convert); }

  /// The chunks, file by file.
  [[nodiscard]] std::vector<StoredBox> boxes() const override;

  /// Reads every byte and compares it with the manifest.
  [[nodiscard]] Verification verify(const std::function<void(uint64_t bytes)>& read) override;

  /// The same. Throws:  mh::Error with the first damage
  void require_whole();

  /// Fills the slices. Names, global shapes and dtypes are checked before any value changes. Each
  /// chunk is read once, with its checksum: where one is damaged, some slices have new values; load
  /// another checkpoint into all of them, or give up.
  void load(std::span<const Slice> slices, OtherDtype other = OtherDtype::refuse);

  /// A whole global tensor on the CPU.
  [[nodiscard]] at::Tensor tensor(const std::string& name);

private:
  struct Need;
  /// The file stays open until another one is.
  [[nodiscard]] const TensorFile& open(const StoredFile& stored);
  [[nodiscard]] const TensorInfo&
  locate(const TensorFile& file, const StoredTensor& tensor, const Chunk& chunk) const;
  using Place = std::pair<const StoredTensor*, const Chunk*>;
  /// Compares a file's tensors, those listed and no others, with the manifest.
  void verify_file(
      const TensorFile& file,
      const StoredFile& stored,
      const std::map<std::string, Place>& listed,
      const std::function<void(uint64_t bytes)>& read,
      std::vector<std::string>& ret_damages
  ) const;
  /// The chunks that the slices need, by file.
  [[nodiscard]] std::map<std::string, std::map<Place, std::vector<Need>>>
  needs(std::span<const Slice> slices, OtherDtype other) const;

  Storage& storage_;
  Path directory_;
  std::optional<HeldFile> held_; // no other process removes what is read
  Manifest manifest_;
  std::vector<CheckpointTensor> tensors_;
  std::optional<TensorFile> open_;
};

/// For `StepFolder`: passes a directory whose every byte is as it was written.
[[nodiscard]] StepFolder::Verify whole_checkpoint(Storage& storage);

} // namespace mh
