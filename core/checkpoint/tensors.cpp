#include "core/checkpoint/tensors.hpp"

#include "core/formats/crc32c.hpp"

#include <ATen/ops/empty.h>

#include <algorithm>

namespace mh {

namespace {

struct DtypePair {
  Dtype dtype;
  at::ScalarType type;
};

constexpr DtypePair kPairs[] = {
    {Dtype::boolean, at::kBool},
    {Dtype::u8, at::kByte},
    {Dtype::i8, at::kChar},
    {Dtype::f8_e5m2, at::kFloat8_e5m2},
    {Dtype::f8_e4m3, at::kFloat8_e4m3fn},
    {Dtype::f8_e8m0, at::kFloat8_e8m0fnu},
    {Dtype::f8_e4m3fnuz, at::kFloat8_e4m3fnuz},
    {Dtype::f8_e5m2fnuz, at::kFloat8_e5m2fnuz},
    {Dtype::i16, at::kShort},
    {Dtype::u16, at::kUInt16},
    {Dtype::f16, at::kHalf},
    {Dtype::bf16, at::kBFloat16},
    {Dtype::i32, at::kInt},
    {Dtype::u32, at::kUInt32},
    {Dtype::f32, at::kFloat},
    {Dtype::c64, at::kComplexFloat},
    {Dtype::f64, at::kDouble},
    {Dtype::i64, at::kLong},
    {Dtype::u64, at::kUInt64},
};

/// Writes bytes and returns their checksum. Each block is read from memory once for both.
uint32_t write_summed(Upload& file, std::span<const std::byte> bytes) {
  constexpr size_t kBlock = 256 << 10; // stays in a core's cache
  uint32_t sum = 0;
  while (!bytes.empty()) {
    const auto block = bytes.first(std::min(kBlock, bytes.size()));
    sum = crc32c(block, sum);
    file.write(block);
    bytes = bytes.subspan(block.size());
  }
  return sum;
}

} // namespace

at::ScalarType scalar_type(Dtype dtype) {
  const auto* pair =
      std::find_if(std::begin(kPairs), std::end(kPairs), [dtype](const DtypePair& row) {
        return row.dtype == dtype;
      });
  if (pair == std::end(kPairs)) {
    throw Error(
        "LibTorch has no dtype like " + std::string(dtype_name(dtype)), "", exit_code::data
    );
  }
  return pair->type;
}

Dtype dtype_of(at::ScalarType type) {
  const auto* pair =
      std::find_if(std::begin(kPairs), std::end(kPairs), [type](const DtypePair& row) {
        return row.type == type;
      });
  if (pair == std::end(kPairs)) {
    throw Error(
        std::string("safetensors has no dtype like ") + c10::toString(type), "", exit_code::data
    );
  }
  return pair->dtype;
}

uint64_t value_bytes(at::ScalarType dtype, const std::vector<int64_t>& shape) {
  uint64_t bytes = c10::elementSize(dtype);
  for (const int64_t size : shape) {
    bytes *= static_cast<uint64_t>(size);
  }
  return bytes;
}

std::span<std::byte> bytes_of(const at::Tensor& tensor) {
  MH_ASSERT(
      tensor.is_contiguous() && tensor.is_cpu(),
      "bytes of a tensor that is not contiguous on the CPU"
  );
  return {static_cast<std::byte*>(tensor.data_ptr()), tensor.nbytes()};
}

at::Tensor
tensor_to_fill(const at::Tensor& into, at::ScalarType dtype, const std::vector<int64_t>& shape) {
  const bool fits = into.defined() && into.is_cpu() && into.is_contiguous() &&
                    into.scalar_type() == dtype && into.sizes() == at::IntArrayRef(shape);
  return fits ? into : at::empty(shape, at::TensorOptions(dtype));
}

WrittenTensors write_outlined(
    Storage& storage,
    const Path& path,
    const std::vector<TensorOutline>& tensors,
    const std::function<at::Tensor(const std::string& name)>& value,
    std::map<std::string, std::string> metadata,
    Storage::Existing existing
) {
  std::vector<TensorInfo> infos;
  for (const auto& [name, dtype, shape] : tensors) {
    infos.push_back({.name = name, .dtype = dtype_of(dtype), .shape = shape});
  }
  const Safetensors layout = lay_out_safetensors(std::move(infos), std::move(metadata));

  WrittenTensors written;
  written.file.name = path.filename().string();
  written.file.size = layout.file_bytes;
  written.file.crc32c = crc32c(layout.header);
  const auto file = storage.put(path, existing);
  file->write(std::as_bytes(std::span(layout.header)));
  for (const TensorInfo& info : layout.tensors) {
    const at::Tensor staged = value(info.name).detach().to(at::kCPU).contiguous();
    const auto bytes = bytes_of(staged);
    MH_ASSERT(bytes.size() == info.bytes, "a tensor of another size than was said");
    const uint32_t sum = written.crc32c[info.name] = write_summed(*file, bytes);
    written.file.crc32c = crc32c_joined(written.file.crc32c, sum, bytes.size());
  }
  file->finish();
  return written;
}

WrittenTensors write_tensors(
    Storage& storage,
    const Path& path,
    const std::vector<NamedTensor>& tensors,
    std::map<std::string, std::string> metadata,
    Storage::Existing existing
) {
  std::vector<TensorOutline> outlines;
  std::map<std::string, const at::Tensor*> by_name;
  for (const auto& [name, value] : tensors) {
    outlines.push_back({name, value.scalar_type(), value.sizes().vec()});
    by_name[name] = &value;
  }
  return write_outlined(
      storage,
      path,
      outlines,
      [&by_name](const std::string& name) { return *by_name[name]; },
      std::move(metadata),
      existing
  );
}

TensorFile::TensorFile(std::unique_ptr<ReadFile> file, const Path& path)
    : path_(path)
    , file_(std::move(file))
    , header_(read_safetensors(
          [this](uint64_t offset, std::span<std::byte> into) {
            read_exactly(*file_, offset, into, path_);
          },
          file_->size(),
          path.string()
      )) {}

at::Tensor TensorFile::read(const TensorInfo& info, const at::Tensor& into) const {
  const at::Tensor tensor = tensor_to_fill(into, scalar_type(info.dtype), info.shape);
  read_exactly(*file_, info.offset, bytes_of(tensor), path_);
  return tensor;
}

at::Tensor TensorFile::rows(
    const TensorInfo& info, int64_t begin, int64_t count, const at::Tensor& into
) const {
  std::vector<int64_t> shape = info.shape;
  MH_ASSERT(!shape.empty() && begin + count <= shape[0], "rows that a tensor does not have");
  const uint64_t row_bytes = info.bytes / static_cast<uint64_t>(std::max<int64_t>(1, shape[0]));
  shape[0] = count;
  const at::Tensor tensor = tensor_to_fill(into, scalar_type(info.dtype), shape);
  const uint64_t at = info.offset + static_cast<uint64_t>(begin) * row_bytes;
  read_exactly(*file_, at, bytes_of(tensor), path_);
  return tensor;
}

void TensorFile::visit(
    const TensorInfo& info, const std::function<void(std::span<const std::byte>)>& block
) const {
  constexpr uint64_t kBlock = 4 << 20;
  std::vector<std::byte> buffer(std::min(info.bytes, kBlock));
  for (uint64_t done = 0; done < info.bytes; done += buffer.size()) {
    const auto part = std::span(buffer).first(std::min<uint64_t>(buffer.size(), info.bytes - done));
    read_exactly(*file_, info.offset + done, part, path_);
    block(part);
  }
}

std::map<std::string, at::Tensor> read_tensors(Storage& storage, const Path& path) {
  const TensorFile file(storage.get(path), path);
  std::map<std::string, at::Tensor> tensors;
  for (const TensorInfo& info : file.header().tensors) {
    tensors[info.name] = file.read(info);
  }
  return tensors;
}

} // namespace mh
