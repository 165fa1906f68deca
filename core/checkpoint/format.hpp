#pragma once
/// The core's use of a checkpoint of any format.
///
/// ```cpp
/// std::unique_ptr<mh::CheckpointReader> saved;
/// const auto step = mh::load_newest("runs/a", *format.steps("runs/a"), {
///     .open = [&](int64_t step) { saved = format.open("runs/a", step); },
///     .judge = [&] { (void)mh::require_fit(*saved, slices[0]); },
///     .load = [&] { saved->read(slices); }}, warn);
/// ```

#include "core/storage/step_folder.hpp"
#include "megahost/checkpoint_format.hpp"

namespace mh {

/// A checkpoint does not fit the model.
[[noreturn]] void refuse_misfit(const Path& path, const std::string& why);

/// Checks name and global shape of a slice; reads no data.
///
/// Throws:  mh::Error (exit code 5) naming the tensor
const CheckpointTensor& require_fit(const CheckpointReader& saved, const Slice& slice);

/// Why a checkpoint cannot fill a slice ("there is no tensor "x""); empty if it can.
[[nodiscard]] std::string misfit(const CheckpointReader& saved, const Slice& slice);

/// Tensors of all ranks' slices that the checkpoint lacks or has in another shape, by name.
///
/// Ranks:   all of `ranks`; each gives its own slices
[[nodiscard]] std::vector<std::string> misfit_tensors(
    const CheckpointReader& saved, const std::vector<Slice>& slices, const Ranks& ranks = {}
);

/// Tensors of the checkpoint that none of the ranks' slices asks for.
///
/// Ranks:   all of `ranks`; each gives its own slices
[[nodiscard]] std::vector<std::string> unused_tensors(
    const CheckpointReader& saved, const std::vector<Slice>& slices, const Ranks& ranks = {}
);

/// The index in `CheckpointReader::tensors` of one of them, such as `find` gives.
[[nodiscard]] size_t index_of(const CheckpointReader& saved, const CheckpointTensor& tensor);

/// Bytes that a reader may have in memory next to each tensor that it fills: the largest of the boxes
/// that it is stored in. One that is stored as a whole is read straight into it, unless it is of
/// floats and to have another dtype than it was saved in. By index, as `CheckpointReader::tensors`.
[[nodiscard]] std::vector<uint64_t>
bytes_to_read(const CheckpointReader& saved, std::optional<at::ScalarType> dtype = std::nullopt);

/// Bytes of the largest of the boxes that each tensor is stored in. By index, as above.
[[nodiscard]] std::vector<uint64_t> largest_boxes(const CheckpointReader& saved);

/// A whole global tensor on the CPU.
[[nodiscard]] at::Tensor whole_tensor(CheckpointReader& saved, const std::string& name);

/// Loads one checkpoint of several.
struct LoadAttempt {
  std::function<void(int64_t step)> open;
  /// Looks at what was opened; what it throws is thrown on, as the checkpoint is whole and not for
  /// this run.
  std::function<void()> judge;
  std::function<void()> load; ///< loads it; if it throws, the checkpoint is damaged
};

/// Loads the newest of `steps` that is whole, and says each newer one that is not. Nothing is read
/// twice: a checkpoint turns out to be damaged while it is loaded, and the one before it is loaded
/// over it.
///
/// Throws:  mh::Error (exit code 5) naming `root` if there are steps and none is whole; that of one
///          that a newer megahost wrote, as older ones are not what the run has come to
/// Ranks:   all, `judge` too; rank 0's steps count
[[nodiscard]] std::optional<int64_t> load_newest(
    const Path& root,
    const std::vector<int64_t>& steps,
    const LoadAttempt& attempt,
    const StepFolder::Warn& warn,
    const Ranks& ranks = {}
);

} // namespace mh
