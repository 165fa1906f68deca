#pragma once
/// Files of torch.save: a zip with a pickle, `data.pkl`, and the bytes of its tensors' storages.
/// No LibTorch, and nothing of the pickle is run.
///
/// ```cpp
/// const mh::TorchFile file(read, size, "model.pt");
/// const mh::PickleValue* weight = file.root().get("weight");
/// if (mh::TorchFile::is_tensor(*weight)) {
///   const mh::TorchTensor tensor = file.tensor(*weight);  // where its bytes lie
/// }
/// ```
///
/// Source:  torch/serialization.py, torch/_utils.py (PyTorch 2.11)

#include "core/formats/pickle.hpp"
#include "core/formats/safetensors.hpp"
#include "core/formats/zip.hpp"

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace mh {

/// A tensor, and where it lies; every element is inside of its storage.
struct TorchTensor {
  Dtype dtype = Dtype::f32;
  std::vector<int64_t> shape, strides; ///< in elements
  uint64_t offset = 0; ///< offset of its first element, in bytes from the file's start
  ZipEntry storage{};  ///< storage that it is a view of

  [[nodiscard]] bool is_contiguous() const;
};

class TorchFile {
public:
  /// Reads the directory and the pickle, no storage.
  ///
  /// Throws:  mh::Error (exit code 5) naming `file`
  TorchFile(ReadAt read, uint64_t size, std::string file, const PickleLimits& limits = {});

  [[nodiscard]] const PickleValue& root() const { return pickle_->root(); }

  [[nodiscard]] const Pickle& pickle() const { return *pickle_; }

  [[nodiscard]] const std::string& file() const { return file_; }

  [[nodiscard]] static bool is_tensor(const PickleValue& value);

  /// Checks it against the storage that it names.
  ///
  /// Throws:  mh::Error (exit code 5): a dtype that is not known; negative sizes or strides;
  ///          elements outside of the storage; a storage of another size than the zip holds
  [[nodiscard]] TorchTensor tensor(const PickleValue& value) const;

  /// Fills `into` from the file's byte `offset` on.
  void read(uint64_t offset, std::span<std::byte> into) const { read_(offset, into); }

  /// All of the zip's entries.
  [[nodiscard]] const std::vector<ZipEntry>& entries() const { return entries_; }

private:
  [[nodiscard]] const ZipEntry* find(const std::string& name) const;

  ReadAt read_;
  std::string file_, prefix_;
  std::vector<ZipEntry> entries_;
  std::map<std::string, size_t, std::less<>> index_;
  std::optional<Pickle> pickle_;
};

/// The dtype of "torch.float32".
[[nodiscard]] std::optional<Dtype> torch_dtype(std::string_view name);
/// "float32"; empty for the few that PyTorch lacks.
[[nodiscard]] std::string_view torch_dtype_name(Dtype dtype);

/// The bytes before and after those of a tensor in a file of torch.save that holds nothing else.
/// torch.load reads it with weights_only=True.
struct TorchEnvelope {
  std::string before, after;
};

/// `crc32` is of the tensor's bytes, contiguous.
[[nodiscard]] TorchEnvelope
torch_envelope(Dtype dtype, const std::vector<int64_t>& shape, uint32_t crc32);

/// A whole file of torch.save that holds what a pickle says.
[[nodiscard]] std::string torch_file_of(const std::string& pickle);

} // namespace mh
