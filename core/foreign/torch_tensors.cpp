#include "core/foreign/torch_tensors.hpp"

#include "core/base/printable.hpp"
#include "core/checkpoint/tensors.hpp"
#include "megahost/error.hpp"

#include <ATen/ops/as_strided.h>
#include <ATen/ops/empty.h>

#include <algorithm>

namespace mh {

TorchFile open_torch_file(
    std::shared_ptr<ReadFile> file,
    const Path& path,
    const std::string& what,
    uint64_t offset,
    uint64_t bytes
) {
  const uint64_t size = file->size();
  const std::string where = path.string() + (what.empty() ? "" : ": " + what);
  if (offset > size || bytes > size - offset) {
    throw Error(
        where + " is " + std::to_string(bytes) + " bytes at byte " + std::to_string(offset) +
            ", but the file has " + std::to_string(size) + ": it is cut short",
        "the checkpoint is damaged: use another one",
        exit_code::data
    );
  }
  return TorchFile(
      [file, path, offset](uint64_t at, std::span<std::byte> into) {
        read_exactly(*file, offset + at, into, path);
      },
      bytes,
      where
  );
}

at::Tensor torch_rows(
    const TorchFile& file,
    const TorchTensor& tensor,
    int64_t begin,
    int64_t count,
    const at::Tensor& into
) {
  const auto options = at::TensorOptions(scalar_type(tensor.dtype));
  const auto size = static_cast<uint64_t>(dtype_bits(tensor.dtype)) / 8;
  const bool has_rows = !tensor.shape.empty();
  const auto check = [&](std::span<const std::byte> bytes) {
    if (bytes.size() == tensor.storage.bytes && crc32(bytes) != tensor.storage.crc32) {
      throw Error(
          file.file() + ": " + printable(tensor.storage.name) + " does not match its checksum",
          "the file is damaged: use another copy; or it was written without checksums, by "
          "torch.serialization.set_crc32_options(False)",
          exit_code::data
      );
    }
  };
  if (tensor.is_contiguous()) {
    std::vector<int64_t> shape = tensor.shape;
    uint64_t skipped = 0;
    if (has_rows) {
      MH_ASSERT(begin >= 0 && begin + count <= shape[0], "rows that a tensor does not have");
      shape[0] = count;
      for (size_t d = 1; d < shape.size(); ++d) {
        skipped = (d == 1 ? 1 : skipped) * static_cast<uint64_t>(shape[d]);
      }
      skipped = (shape.size() == 1 ? 1 : skipped) * static_cast<uint64_t>(begin);
    }
    at::Tensor rows = tensor_to_fill(into, scalar_type(tensor.dtype), shape);
    file.read(tensor.offset + skipped * size, bytes_of(rows));
    check(bytes_of(rows));
    return rows;
  }
  const auto elements = static_cast<int64_t>(tensor.storage.bytes / size);
  const at::Tensor storage = at::empty({elements}, options);
  file.read(tensor.storage.offset, bytes_of(storage));
  check(bytes_of(storage));
  const auto first = static_cast<int64_t>((tensor.offset - tensor.storage.offset) / size);
  const at::Tensor whole = storage.as_strided(tensor.shape, tensor.strides, first);
  return has_rows ? whole.narrow(0, begin, count).contiguous() : whole.clone();
}

std::vector<std::string>
torch_damages(const TorchFile& file, const std::function<void(uint64_t bytes)>& read) {
  constexpr uint64_t kBlock = 4 << 20;
  std::vector<std::string> damages;
  std::vector<std::byte> buffer;
  for (const ZipEntry& entry : file.entries()) {
    uint32_t sum = 0;
    for (uint64_t done = 0; done < entry.bytes; done += buffer.size()) {
      buffer.resize(std::min(kBlock, entry.bytes - done));
      file.read(entry.offset + done, buffer);
      sum = crc32(buffer, sum);
      read(buffer.size());
    }
    if (sum != entry.crc32) {
      damages.push_back(
          file.file() + ": " + printable(entry.name) + " does not match its checksum"
      );
    }
  }
  return damages;
}

void put_torch_tensor(Storage& storage, const Path& path, const at::Tensor& value) {
  const at::Tensor staged = value.detach().to(at::kCPU).contiguous();
  const auto bytes = bytes_of(staged);
  const auto [before, after] =
      torch_envelope(dtype_of(staged.scalar_type()), staged.sizes().vec(), crc32(bytes));
  const auto upload = storage.put(path);
  upload->write(std::as_bytes(std::span(before)));
  upload->write(bytes);
  upload->write(std::as_bytes(std::span(after)));
  upload->finish();
}

} // namespace mh
