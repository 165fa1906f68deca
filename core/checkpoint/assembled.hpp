#pragma once
/// A checkpoint whose tensors are put together from boxes of another's: of stacked layers, or of the
/// parts that ranks saved.

#include "core/checkpoint/box.hpp"
#include "megahost/checkpoint_format.hpp"

#include <memory>
#include <string>
#include <vector>

namespace mh {

/// The key of `CheckpointReader::arguments` with the reason why an optimizer's state is not read that
/// the checkpoint has.
constexpr const char* kUnreadState = "unread optimizer state";

/// A box of a tensor, and where it lies in one of the inner checkpoint.
struct AssembledPart {
  size_t source = 0;         ///< index in the inner checkpoint's tensors
  std::vector<int64_t> from; ///< its first element there; further dimensions come first
  Box box;

  /// Whether it lies in one dimension of the source, row by row.
  [[nodiscard]] bool is_flat() const { return from.size() < box.shape.size(); }
};

struct AssembledTensor {
  CheckpointTensor tensor;
  std::vector<AssembledPart> parts;
};

class AssembledReader final : public CheckpointReader {
public:
  /// `tensors`: sorted by name.
  ///
  /// Throws:  mh::Error (exit code 5), as all functions do: parts that do not cover their tensor
  ///          exactly, or lie outside of their source
  AssembledReader(
      std::unique_ptr<CheckpointReader> inner,
      std::vector<AssembledTensor> tensors,
      TensorNames names,
      std::string arguments
  );

  [[nodiscard]] Path path() const override { return inner_->path(); }

  [[nodiscard]] const std::vector<CheckpointTensor>& tensors() const override { return tensors_; }

  void read(std::span<const Slice> slices) override;

  [[nodiscard]] Verification verify(const std::function<void(uint64_t bytes)>& read) override {
    return inner_->verify(read);
  }

  [[nodiscard]] TensorNames names() const override { return names_; }

  [[nodiscard]] std::string arguments() const override { return arguments_; }

private:
  /// Reads what a slice has of a part that is flat: whole rows, of which one slice is in memory.
  void read_flat(const AssembledPart& part, const Box& both, const at::Tensor& into) const;

  std::unique_ptr<CheckpointReader> inner_;
  std::vector<CheckpointTensor> tensors_;
  std::vector<std::vector<AssembledPart>> parts_; // by tensor
  TensorNames names_;
  std::string arguments_;
};

} // namespace mh
