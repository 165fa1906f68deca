#pragma once
/// Tensors that are made one at a time while a checkpoint of them is written.

#include "core/checkpoint/tensors.hpp"
#include "core/storage/step_folder.hpp"

#include <nlohmann/json.hpp>

#include <functional>
#include <string>
#include <vector>

namespace mh {

struct OutlinedTensors {
  std::vector<TensorOutline> outlines;
  /// Values of a name, on any device and in any strides, good until the next are asked for.
  std::function<at::Tensor(const std::string& name)> value;
  uint64_t at_once = 0;                ///< bytes of tensors that are in memory at a time, at most
  uint64_t file_bytes = 5'000'000'000; ///< bytes of tensors in a file at most, unless one has more
  /// Is told how many bytes are written.
  std::function<void(uint64_t done)> progress = [](uint64_t) {};

  [[nodiscard]] uint64_t bytes() const;
  /// The tensors of each file, in their order.
  [[nodiscard]] std::vector<std::vector<TensorOutline>> files() const;
};

/// Writes and commits a checkpoint of our own form of whole tensors.
///
/// Throws:  mh::Error if a value cannot be had or written; the folder is as it was then
void write_native_tensors(
    Storage& storage,
    StepFolder& folder,
    int64_t step,
    const nlohmann::json& state,
    const OutlinedTensors& tensors
);

} // namespace mh
