#pragma once
/// Checkpoints of other programs that have a folder for each iteration.

#include "megahost/checkpoint_format.hpp"

#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace mh {

/// A folder of one checkpoint, or one with a folder for each iteration that is whole. Where none is, and
/// writing one was begun, `steps` refuses the folder.
class IterationFormat : public CheckpointFormat {
public:
  explicit IterationFormat(Storage& storage)
      : storage_(storage) {}

  [[nodiscard]] bool detect(const Path& folder) const override;
  [[nodiscard]] std::optional<std::vector<int64_t>> steps(const Path& folder) const override;
  [[nodiscard]] std::unique_ptr<CheckpointReader>
  open(const Path& folder, std::optional<int64_t> step) const override;

  /// Whether writing a folder of one checkpoint was begun and not ended.
  [[nodiscard]] bool is_half(const Path& folder) const { return !lacking(folder).empty(); }

protected:
  [[nodiscard]] virtual bool is_whole(const Path& folder) const = 0;

  /// The file without which a folder is not whole, which was begun and lacks it; else "".
  [[nodiscard]] virtual std::string lacking(const Path& /*folder*/) const { return ""; }

  [[nodiscard]] virtual std::unique_ptr<CheckpointReader> read(const Path& folder) const = 0;

  /// The name of an iteration's folder, which ends with its number.
  [[nodiscard]] virtual std::string folder_name(int64_t step) const;

  [[nodiscard]] Storage& storage() const { return storage_; }

private:
  /// The folders of iterations, newest first.
  [[nodiscard]] std::vector<int64_t> folders(const Path& folder) const;
  [[nodiscard]] std::vector<int64_t> iterations(const Path& folder) const;
  /// The newest folder that was begun: this one, or an iteration's in it.
  [[nodiscard]] std::optional<Path> begun(const Path& folder) const;

  Storage& storage_;
};

/// "iter_0000100", as Megatron-LM names it.
[[nodiscard]] std::string iteration_name(int64_t step);

} // namespace mh
