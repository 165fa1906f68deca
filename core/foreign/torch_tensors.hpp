#pragma once
/// LibTorch's tensors in files of torch.save.

#include "core/formats/torch_file.hpp"
#include "megahost/storage.hpp"

#include <ATen/core/Tensor.h>

#include <memory>

namespace mh {

/// A part of an object, whole if not told: a file of torch.save by itself.
///
/// Throws:  mh::Error (exit code 5) naming `what` if the object ends before the part does
[[nodiscard]] TorchFile open_torch_file(
    std::shared_ptr<ReadFile> file,
    const Path& path,
    const std::string& what,
    uint64_t offset,
    uint64_t bytes
);

/// A copy of the entries begin, begin + 1, ... of a tensor's first dimension, or of one without
/// dimensions: `into`, where that can take it. If the tensor lies in order no other byte is read; a storage that is read whole is
/// compared with its checksum.
///
/// Throws:  mh::Error (exit code 5) naming the file
[[nodiscard]] at::Tensor torch_rows(
    const TorchFile& file,
    const TorchTensor& tensor,
    int64_t begin,
    int64_t count,
    const at::Tensor& into = {}
);

/// Writes a tensor, on any device and in any strides, as torch.save does.
void put_torch_tensor(Storage& storage, const Path& path, const at::Tensor& value);

/// Reads all entries of a file, a few MiB at a time, and compares them with their checksums.
///
/// Returns: a sentence for each that differs
[[nodiscard]] std::vector<std::string>
torch_damages(const TorchFile& file, const std::function<void(uint64_t bytes)>& read);

} // namespace mh
