#include "core/formats/torch_file.hpp"

#include "core/base/printable.hpp"
#include "megahost/error.hpp"

#include <algorithm>
#include <cstring>
#include <memory>

namespace mh {

namespace {

constexpr uint64_t kMostPickle = uint64_t{1} << 30;
constexpr uint64_t kNear = 2048; // bytes at each end that are read at once

struct TorchDtype {
  Dtype dtype;
  std::string_view name;
  std::string_view storage; ///< empty: of an UntypedStorage
};

constexpr TorchDtype kTorchDtypes[] = {
    {Dtype::boolean, "bool", "BoolStorage"},
    {Dtype::u8, "uint8", "ByteStorage"},
    {Dtype::i8, "int8", "CharStorage"},
    {Dtype::f8_e5m2, "float8_e5m2", ""},
    {Dtype::f8_e4m3, "float8_e4m3fn", ""},
    {Dtype::f8_e8m0, "float8_e8m0fnu", ""},
    {Dtype::f8_e4m3fnuz, "float8_e4m3fnuz", ""},
    {Dtype::f8_e5m2fnuz, "float8_e5m2fnuz", ""},
    {Dtype::i16, "int16", "ShortStorage"},
    {Dtype::u16, "uint16", ""},
    {Dtype::f16, "float16", "HalfStorage"},
    {Dtype::bf16, "bfloat16", "BFloat16Storage"},
    {Dtype::i32, "int32", "IntStorage"},
    {Dtype::u32, "uint32", ""},
    {Dtype::f32, "float32", "FloatStorage"},
    {Dtype::c64, "complex64", "ComplexFloatStorage"},
    {Dtype::f64, "float64", "DoubleStorage"},
    {Dtype::i64, "int64", "LongStorage"},
    {Dtype::u64, "uint64", ""},
};

constexpr std::string_view kTorch = "torch.";

const TorchDtype* row_of(Dtype dtype) {
  const auto* row = std::find_if(
      std::begin(kTorchDtypes),
      std::end(kTorchDtypes),
      [dtype](const TorchDtype& one) { return one.dtype == dtype; }
  );
  return row == std::end(kTorchDtypes) ? nullptr : row;
}

std::optional<Dtype> dtype_of_storage(std::string_view name) {
  for (const TorchDtype& row : kTorchDtypes) {
    if (!row.storage.empty() && name.starts_with(kTorch) &&
        name.substr(kTorch.size()) == row.storage) {
      return row.dtype;
    }
  }
  return std::nullopt;
}

uint64_t bytes_of_dtype(Dtype dtype) {
  return static_cast<uint64_t>(dtype_bits(dtype)) / 8;
}

/// Serves both ends of a file from memory: small items of a checkpoint are read in two reads.
ReadAt with_ends(const ReadAt& read, uint64_t size) {
  struct Ends {
    std::vector<std::byte> first, last;
  };

  auto ends = std::make_shared<Ends>();
  ends->first.resize(std::min(size, kNear));
  ends->last.resize(std::min(size, kNear));
  if (size > 0) {
    read(0, ends->first);
    read(size - ends->last.size(), ends->last);
  }
  return [ends, read, size](uint64_t offset, std::span<std::byte> into) {
    const uint64_t last = size - ends->last.size();
    if (offset <= ends->first.size() && into.size() <= ends->first.size() - offset) {
      std::copy_n(ends->first.begin() + static_cast<int64_t>(offset), into.size(), into.begin());
    } else if (offset >= last && into.size() <= size - offset) {
      std::copy_n(
          ends->last.begin() + static_cast<int64_t>(offset - last), into.size(), into.begin()
      );
    } else {
      read(offset, into);
    }
  };
}

/// Elements from a view's first to its last, if that is a number.
std::optional<uint64_t>
extent(const std::vector<int64_t>& shape, const std::vector<int64_t>& strides) {
  uint64_t last = 0;
  for (size_t d = 0; d < shape.size(); ++d) {
    if (shape[d] < 0 || strides[d] < 0) {
      return std::nullopt;
    }
    if (shape[d] == 0) {
      return 0;
    }
    uint64_t far = 0;
    if (__builtin_mul_overflow(
            static_cast<uint64_t>(shape[d] - 1), static_cast<uint64_t>(strides[d]), &far
        ) ||
        __builtin_add_overflow(last, far, &last)) {
      return std::nullopt;
    }
  }
  return last < UINT64_MAX ? std::optional(last + 1) : std::nullopt;
}

} // namespace

std::optional<Dtype> torch_dtype(std::string_view name) {
  for (const TorchDtype& row : kTorchDtypes) {
    if (name.starts_with(kTorch) && name.substr(kTorch.size()) == row.name) {
      return row.dtype;
    }
  }
  return std::nullopt;
}

std::string_view torch_dtype_name(Dtype dtype) {
  const TorchDtype* row = row_of(dtype);
  return row == nullptr ? "" : row->name;
}

bool TorchTensor::is_contiguous() const {
  int64_t expected = 1;
  for (size_t d = shape.size(); d-- > 0;) {
    if (shape[d] == 0) {
      return true;
    }
    if (shape[d] != 1 && strides[d] != expected) {
      return false;
    }
    expected *= shape[d]; // at most the storage's elements, or the strides differ before
  }
  return true;
}

TorchFile::TorchFile(ReadAt read, uint64_t size, std::string file, const PickleLimits& limits)
    : file_(std::move(file)) {
  read_ = with_ends(read, size);
  entries_ = read_zip(read_, size, file_);
  const std::string_view ending = "/data.pkl";
  for (size_t i = 0; i < entries_.size(); ++i) {
    index_.emplace(entries_[i].name, i);
    if (entries_[i].name.ends_with(ending) &&
        entries_[i].name.find('/') == entries_[i].name.size() - ending.size()) {
      prefix_ = entries_[i].name.substr(0, entries_[i].name.size() - ending.size() + 1);
    }
  }
  const ZipEntry* data = find("data.pkl");
  if (data == nullptr || data->bytes > kMostPickle) {
    throw Error(
        file_ + ": a zip file without a data.pkl that can be read",
        "give a file of torch.save",
        exit_code::data
    );
  }
  std::string text(data->bytes, '\0');
  read_(data->offset, std::as_writable_bytes(std::span(text)));
  if (crc32(text) != data->crc32) {
    throw Error(
        file_ + ": data.pkl does not match its checksum",
        "the file is damaged: use another copy; or it was written without checksums, by "
        "torch.serialization.set_crc32_options(False)",
        exit_code::data
    );
  }
  if (const ZipEntry* order = find("byteorder"); order != nullptr) {
    std::string word(std::min<uint64_t>(order->bytes, 16), '\0');
    read_(order->offset, std::as_writable_bytes(std::span(word)));
    if (word != "little") {
      throw Error(
          file_ + ": its numbers are " + printable(word) + " endian, expected little",
          "load and save it on a machine of today",
          exit_code::data
      );
    }
  }
  pickle_.emplace(std::move(text), file_ + ": data.pkl", limits);
}

const ZipEntry* TorchFile::find(const std::string& name) const {
  const auto found = index_.find(prefix_ + name);
  return found == index_.end() ? nullptr : &entries_[found->second];
}

bool TorchFile::is_tensor(const PickleValue& value) {
  return value.is_object("torch._utils._rebuild_tensor_v2") ||
         value.is_object("torch._utils._rebuild_tensor_v3") ||
         (value.is_object("torch._utils._rebuild_parameter") && !value.items.empty() &&
          !value.items[0]->is_object("torch._utils._rebuild_parameter") &&
          is_tensor(*value.items[0]));
}

TorchTensor TorchFile::tensor(const PickleValue& value) const {
  if (value.is_object("torch._utils._rebuild_parameter") && is_tensor(value)) {
    return tensor(*value.items[0]);
  }
  const bool is_untyped = value.is_object("torch._utils._rebuild_tensor_v3");
  const size_t least = is_untyped ? 7 : 4;
  if (!is_tensor(value) || value.items.size() < least || !value.items[1]->is(PickleKind::integer) ||
      !value.items[0]->is(PickleKind::persistent) ||
      !value.items[0]->items[0]->is(PickleKind::tuple)) {
    pickle_->refuse(value, "a tensor without a storage and an offset");
  }
  // ("storage", class, key, device, elements or, where the class is untyped, bytes)
  const auto& id = value.items[0]->items[0]->items;
  if (id.size() != 5 || !id[1]->is(PickleKind::global) || !id[2]->is(PickleKind::text) ||
      !id[4]->is(PickleKind::integer) || id[4]->integer < 0) {
    pickle_->refuse(value, "a storage that is none");
  }
  const std::string_view type = is_untyped ? value.items[6]->text : id[1]->text;
  const auto dtype = is_untyped ? torch_dtype(type) : dtype_of_storage(type);
  if (!dtype) {
    pickle_->refuse(value, "a tensor of " + printable(type) + ", which is not read");
  }
  TorchTensor tensor;
  tensor.dtype = *dtype;
  tensor.shape = pickle_->integers(*value.items[2], "a tensor's shape");
  tensor.strides = pickle_->integers(*value.items[3], "a tensor's strides");
  const int64_t offset = value.items[1]->integer;
  const auto elements = tensor.shape.size() == tensor.strides.size() && offset >= 0 &&
                                tensor_bytes(tensor.dtype, tensor.shape)
                            ? extent(tensor.shape, tensor.strides)
                            : std::nullopt;
  if (!elements) {
    pickle_->refuse(
        value,
        "a tensor of the shape " + shape_text(tensor.shape) + " with the strides " +
            shape_text(tensor.strides) + " at element " + std::to_string(offset)
    );
  }
  const ZipEntry* storage = find("data/" + std::string(id[2]->text));
  if (storage == nullptr) {
    pickle_->refuse(value, "a storage " + printable(id[2]->text) + " that the file lacks");
  }
  const uint64_t size = bytes_of_dtype(tensor.dtype);
  const auto told = static_cast<uint64_t>(id[4]->integer);
  if (told > storage->bytes || told * (is_untyped ? 1 : size) != storage->bytes) {
    pickle_->refuse(
        value,
        "a storage of " + std::to_string(told) + (is_untyped ? " bytes" : " elements") +
            ", for which the file has " + std::to_string(storage->bytes) + " bytes"
    );
  }
  const uint64_t there = storage->bytes / size;
  const auto first = static_cast<uint64_t>(offset);
  if (first > there || *elements > there - first) {
    pickle_->refuse(
        value,
        "a tensor of the shape " + shape_text(tensor.shape) + " at element " +
            std::to_string(offset) + " ends outside of its storage of " + std::to_string(there) +
            " elements"
    );
  }
  tensor.storage = *storage;
  tensor.offset = storage->offset + first * size;
  return tensor;
}

namespace {

std::string torch_entry(ZipLayout& zip, const std::string& name, const std::string& bytes) {
  return zip.entry("archive/" + name, bytes.size(), crc32(bytes)) + bytes;
}

std::string torch_begin(ZipLayout& zip, const std::string& pickle) {
  std::string bytes = torch_entry(zip, "data.pkl", pickle);
  bytes += torch_entry(zip, "byteorder", "little");
  return bytes;
}

std::string torch_end(ZipLayout& zip) {
  std::string bytes = torch_entry(zip, "version", "3\n");
  bytes += zip.finish();
  return bytes;
}

} // namespace

TorchEnvelope torch_envelope(Dtype dtype, const std::vector<int64_t>& shape, uint32_t crc32) {
  const TorchDtype* row = row_of(dtype);
  const auto bytes = tensor_bytes(dtype, shape);
  if (row == nullptr || !bytes) {
    throw Error(
        "PyTorch has no tensor of " + std::string(dtype_name(dtype)) + " " + shape_text(shape),
        "",
        exit_code::data
    );
  }
  const bool is_untyped = row->storage.empty();
  const auto size = static_cast<int64_t>(is_untyped ? *bytes : *bytes / bytes_of_dtype(dtype));
  std::vector<int64_t> strides(shape.size(), 1);
  for (size_t d = shape.size(); d-- > 1;) {
    strides[d - 1] = strides[d] * std::max<int64_t>(shape[d], 1);
  }
  PickleWriter out;
  out.global("torch._utils", is_untyped ? "_rebuild_tensor_v3" : "_rebuild_tensor_v2").mark();
  out.mark().text("storage");
  if (is_untyped) {
    out.global("torch.storage", "UntypedStorage");
  } else {
    out.global("torch", row->storage);
  }
  out.text("0").text("cpu").integer(size).tuple().persistent();
  out.integer(0).integers(shape).integers(strides).boolean(false);
  out.global("collections", "OrderedDict").mark().tuple().reduce();
  if (is_untyped) {
    out.global("torch", row->name);
  }
  out.tuple().reduce();
  ZipLayout zip;
  TorchEnvelope envelope;
  envelope.before = torch_begin(zip, out.finish());
  envelope.before += zip.entry("archive/data/0", *bytes, crc32);
  envelope.after = torch_end(zip);
  return envelope;
}

std::string torch_file_of(const std::string& pickle) {
  ZipLayout zip;
  std::string bytes = torch_begin(zip, pickle);
  bytes += torch_end(zip);
  return bytes;
}

} // namespace mh
