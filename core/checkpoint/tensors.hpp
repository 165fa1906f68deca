#pragma once
/// LibTorch's tensors in safetensors files.

#include "core/formats/manifest.hpp"
#include "megahost/storage.hpp"

#include <ATen/core/Tensor.h>

#include <functional>
#include <map>
#include <string>
#include <vector>

namespace mh {

/// Throws:  mh::Error naming the dtype if the other side has none like it
[[nodiscard]] at::ScalarType scalar_type(Dtype dtype);
[[nodiscard]] Dtype dtype_of(at::ScalarType type);

struct NamedTensor {
  std::string name;
  at::Tensor value;
};

/// The file that was written, and the checksum of each tensor's bytes in memory.
struct WrittenTensors {
  StoredFile file;
  std::map<std::string, uint32_t> crc32c;
};

/// A tensor of which the values are asked for when they are written.
struct TensorOutline {
  std::string name;
  at::ScalarType dtype = at::kFloat;
  std::vector<int64_t> shape;
};

/// Bytes of a tensor's values.
[[nodiscard]] uint64_t value_bytes(at::ScalarType dtype, const std::vector<int64_t>& shape);

/// Writes a safetensors file of tensors of which one at a time is in memory; `value` gives those of
/// a name, on any device and in any strides.
WrittenTensors write_outlined(
    Storage& storage,
    const Path& path,
    const std::vector<TensorOutline>& tensors,
    const std::function<at::Tensor(const std::string& name)>& value,
    std::map<std::string, std::string> metadata = {{"format", "pt"}},
    Storage::Existing existing = Storage::Existing::refuse
);

/// Writes a safetensors file of tensors that are all in memory.
WrittenTensors write_tensors(
    Storage& storage,
    const Path& path,
    const std::vector<NamedTensor>& tensors,
    std::map<std::string, std::string> metadata = {{"format", "pt"}},
    Storage::Existing existing = Storage::Existing::refuse
);

/// A safetensors file, open for reading.
class TensorFile {
public:
  /// Throws:  StorageError; mh::Error (exit code 5) if it is no safetensors file
  TensorFile(std::unique_ptr<ReadFile> file, const Path& path);

  [[nodiscard]] const Safetensors& header() const { return header_; }

  [[nodiscard]] const Path& path() const { return path_; }

  /// A copy of one of the header's tensors on the CPU: `into`, where that can take it.
  [[nodiscard]] at::Tensor read(const TensorInfo& info, const at::Tensor& into = {}) const;
  /// The same, of the entries begin, begin + 1, ... of its first dimension.
  [[nodiscard]] at::Tensor
  rows(const TensorInfo& info, int64_t begin, int64_t count, const at::Tensor& into = {}) const;
  /// Its bytes, a few MiB at a time.
  void
  visit(const TensorInfo& info, const std::function<void(std::span<const std::byte>)>& block) const;

private:
  Path path_;
  std::unique_ptr<ReadFile> file_;
  Safetensors header_;
};

/// The tensors of a safetensors file, on the CPU.
[[nodiscard]] std::map<std::string, at::Tensor> read_tensors(Storage& storage, const Path& path);

/// `into`, if the bytes of such a tensor can be read straight into it: one of this dtype and shape,
/// contiguous on the CPU; else a new one.
[[nodiscard]] at::Tensor
tensor_to_fill(const at::Tensor& into, at::ScalarType dtype, const std::vector<int64_t>& shape);

/// The bytes of a contiguous CPU tensor.
[[nodiscard]] std::span<std::byte> bytes_of(const at::Tensor& tensor);

} // namespace mh
