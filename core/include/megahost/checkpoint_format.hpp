#pragma once
/// Checkpoint formats: tensors in a folder, read as slices and written from slices.
///
/// The core finds the format of a folder by asking each one (`detect`), says which slices of which
/// tensors a rank's model is made of, and judges what is missing or has no place. A format knows
/// files, and no model. A whole one that reads only, as it has no `write`:
///
/// ```cpp
/// class Mine final : public mh::CheckpointFormat {
/// public:
///   struct Config {};
///   static void fields(mh::Fields<Config>&) {}
///   Mine(const Config&, const Args& args) : storage(args.storage) {}
///   std::string about() const override { return "Mine folder"; }
///   std::string mark() const override { return "mine.index"; }
///   bool detect(const mh::Path& folder) const override {
///     return storage.contains(folder / "mine.index");
///   }
///   std::unique_ptr<mh::CheckpointReader>
///   open(const mh::Path& folder, std::optional<int64_t> step) const override;
///   mh::Storage& storage;
/// };
/// ```

#include "megahost/error.hpp"
#include "megahost/export.hpp"
#include "megahost/kind.hpp"
#include "megahost/ranks.hpp"
#include "megahost/storage.hpp"

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace mh {

/// A rank's box of a global tensor: of a parameter, a master weight, an optimizer's state.
struct Slice {
  std::string name;
  std::vector<int64_t> global_shape;
  std::vector<int64_t> offset;
  at::Tensor local; ///< any device and strides; its sizes are the box's
};

/// A global tensor of a checkpoint.
struct CheckpointTensor {
  std::string name;
  at::ScalarType dtype = at::kFloat;
  std::vector<int64_t> shape;
  /// Whether a model that is given these weights must have a place for it: false for what is no
  /// weight, such as an optimizer's state and constants.
  bool is_weight = true;
};

/// A box of a global tensor as a checkpoint stores it: to read it reads no byte of another.
struct StoredBox {
  size_t tensor = 0; ///< in CheckpointReader::tensors
  std::vector<int64_t> offset, shape;
  size_t file = 0; ///< boxes of one file are read by one rank of a machine, in their order
};

/// The naming scheme of a checkpoint's tensors.
enum class TensorNames : uint8_t {
  own,          ///< the parameters' own
  hugging_face, ///< the names that `Architecture::hugging_face()` maps to
  megatron      ///< the names that `Architecture::megatron()` maps to
};

/// The result of reading every byte of a checkpoint.
struct Verification {
  std::vector<std::string> damages{}; ///< a sentence each, with file, tensor and place
  bool checksums = false; ///< false: the format has none, so that changed values go unnoticed
};

/// One checkpoint, open for reading.
///
/// Throws:  mh::Error (exit code 5) from every function, naming file and tensor
class MH_API CheckpointReader {
public:
  virtual ~CheckpointReader();

  /// The checkpoint's path, for messages.
  [[nodiscard]] virtual Path path() const = 0;

  /// Sorted by name.
  [[nodiscard]] virtual const std::vector<CheckpointTensor>& tensors() const = 0;

  /// Fills the slices, which fit: names and shapes are those of `tensors`. Values are converted to
  /// the slices' dtypes. Each byte is read once, with its checksum where the format has some; where
  /// it is damaged, some slices have new values.
  ///
  /// Ranks:   each for its own slices
  virtual void read(std::span<const Slice> slices) = 0;

  /// The boxes that the checkpoint's tensors are stored in, so that the ranks of a machine can read
  /// each byte once between them: each tensor as a whole, unless a format knows better.
  [[nodiscard]] virtual std::vector<StoredBox> boxes() const;

  /// Reads all of it and finds everything that is damaged; unless a format knows better: each
  /// tensor that cannot be read.
  ///
  /// read  gets the number of bytes, each time some were read
  [[nodiscard]] virtual Verification verify(const std::function<void(uint64_t bytes)>& read);

  [[nodiscard]] virtual TensorNames names() const { return TensorNames::own; }

  /// The state that the run that wrote it needs to continue, as JSON; empty: it holds weights only.
  [[nodiscard]] virtual std::string state() const { return ""; }

  /// The facts that another program keeps of the run that it saved, as a JSON object, such as
  /// Megatron-LM's arguments with its "iteration"; empty if nothing is known.
  [[nodiscard]] virtual std::string arguments() const { return ""; }

  /// The tensor of this name, or of one that means the same; null if there is none.
  [[nodiscard]] virtual const CheckpointTensor* find(std::string_view name) const;
};

/// The contents of a checkpoint to write.
struct CheckpointContents {
  int64_t step = 0;
  std::string state{}; ///< JSON, rank 0's
  std::span<const Slice> slices;
  /// Gets a sentence for what went wrong after the checkpoint was whole.
  std::function<void(const std::string& sentence)> warn = [](const std::string&) {};
};

class MH_API CheckpointFormat {
public:
  static constexpr Kind kKind = Kind::checkpoint_format;

  struct Args {
    Storage& storage; ///< outlives the format
  };

  virtual ~CheckpointFormat();

  /// The noun for such a folder in a sentence: "Hugging Face folder".
  [[nodiscard]] virtual std::string about() const = 0;
  /// The name of a file that every such folder has: "model.safetensors".
  [[nodiscard]] virtual std::string mark() const = 0;

  /// Whether a folder is one of this format, by the names in it.
  [[nodiscard]] virtual bool detect(const Path& folder) const = 0;

  /// Steps of the checkpoints in a folder, newest first; nothing where a folder is one checkpoint.
  [[nodiscard]] virtual std::optional<std::vector<int64_t>> steps(const Path& /*folder*/) const {
    return std::nullopt;
  }

  /// Opens the checkpoint of a step, or the folder's only one.
  [[nodiscard]] virtual std::unique_ptr<CheckpointReader>
  open(const Path& folder, std::optional<int64_t> step) const = 0;

  /// The text of a config.json that says what the model is, as Hugging Face's do; nothing where the
  /// folder does not say it in that form. It is compared with the recipe, and read by `model.from`.
  [[nodiscard]] virtual std::optional<std::string> config(const Path& /*folder*/) const {
    return std::nullopt;
  }

  /// The place of the checkpoints in a folder, for messages.
  [[nodiscard]] virtual Path place(const Path& folder) const { return folder; }

  /// Removes what a process that ended has left of checkpoints half written or half removed. Called
  /// before a run goes on in a folder, on one rank.
  virtual void
  recover(const Path& folder, const std::function<void(const std::string&)>& warn) const;

  /// Writes a checkpoint, whole or not at all. `folder` is what a person names to read it.
  ///
  /// A class that does not override it only reads: a recipe whose `checkpoint.use` names it is
  /// refused (Registry::Entry::writes).
  ///
  /// Throws:  mh::Error, the same on every rank, if any rank failed; the checkpoints before stay as
  ///          they were
  /// Thread:  one that does nothing else, while steps go on (checkpoint.async): the slices are
  ///          copies in host memory then, `ranks` have no group, and the thread ends by itself. No
  ///          other function of the format is called meanwhile
  /// Ranks:   all; a slice that several ranks hold is written once
  virtual void
  write(const Path& folder, const CheckpointContents& contents, const Ranks& ranks) const;

  /// Removes the checkpoint of a step, which does not count from the first change on: of those that
  /// a recipe's `checkpoint.keep` does not keep. A class that does not override it keeps all.
  ///
  /// Thread:  as `write`, after it, on rank 0
  virtual void remove(const Path& folder, int64_t step) const;
};

} // namespace mh
