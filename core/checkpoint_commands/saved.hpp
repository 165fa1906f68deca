#pragma once
/// A checkpoint that a command was asked for, and how far reading it is.

#include "core/checkpoint/outlined.hpp"
#include "core/cli/invocation.hpp"
#include "core/draw/terminal.hpp"
#include "megahost/checkpoint_format.hpp"
#include "megahost/host.hpp"

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace mh {

/// One checkpoint, open.
struct Saved {
  std::string format;                      ///< "native"
  std::shared_ptr<Storage> storage;        ///< storage that keeps to the folder
  std::unique_ptr<CheckpointFormat> reads; ///< null for the folder of one step
  std::unique_ptr<CheckpointReader> reader;
  std::optional<int64_t> step{};
};

/// Opens the checkpoint of --step in a folder, else its newest one; or a folder of one step, such
/// as runs/a/checkpoints/step-000000001000.
///
/// Throws:  mh::Error (exit code 5) with what is there instead
[[nodiscard]] Saved open_saved(const Invocation& invocation, const std::string& folder, Host& host);

/// Writes a checkpoint's tensors, as they are or with weights of --dtype, as a folder of
/// torch.distributed.checkpoint; one tensor at a time is in memory.
int export_as_dcp(const Saved& saved, const Invocation& invocation, Host& host);

/// A bar on a terminal, else a line now and then.
class ByteProgress {
public:
  ByteProgress(std::string what, uint64_t all);
  ~ByteProgress();
  ByteProgress(const ByteProgress&) = delete;
  ByteProgress& operator=(const ByteProgress&) = delete;

  void operator()(uint64_t done);

private:
  using Clock = std::chrono::steady_clock;

  std::string what_;
  uint64_t all_;
  Terminal terminal_;
  Clock::time_point start_ = Clock::now(), drawn_ = Clock::now();
  bool shown_ = false;
};

/// The folder of -o.
///
/// Throws:  mh::Error if it is not given
[[nodiscard]] Path output_folder(const Invocation& invocation);

/// The folder of -o, in which nothing is but files with these beginnings: those of an earlier export of
/// the same format that was ended, which are written again. Temporary files of its uploads are
/// removed, and so is `half`, the folder that such an export has begun.
///
/// Throws:  mh::Error (exit code 5) naming what else is there
[[nodiscard]] Path output_of_format(
    const Invocation& invocation,
    Storage& storage,
    const std::vector<std::string_view>& own = {},
    const std::string& half = ""
);

/// Says how many bytes are going to be written, and how much memory that takes without the buffers of
/// a storage's plugin.
///
/// `what`:  "the export"
/// Throws:  mh::Error if the machine has not so much memory free (exit code 3) or the disk not so
///          much room (exit code 5)
void say_needs(const std::string& what, const OutlinedTensors& tensors, const Path& to);

/// Bytes of a file at most, as --file-size says it in millions.
[[nodiscard]] uint64_t file_bytes(const Invocation& invocation);

/// The type of --dtype, or of a recipe's precision; nothing for other words.
[[nodiscard]] std::optional<at::ScalarType> dtype_named(const std::string& word);

/// Bytes of a tensor.
[[nodiscard]] uint64_t tensor_bytes(const CheckpointTensor& tensor);

/// Makes the C library give memory back to the system as soon as it is freed, in blocks of 64 KiB or
/// more. Else glibc keeps ever larger ones, and a command that copies one tensor after the other
/// comes to hold as much as the model has.
void return_freed_memory();

} // namespace mh
