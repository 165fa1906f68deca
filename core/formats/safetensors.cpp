#include "core/formats/safetensors.hpp"

#include "core/base/printable.hpp"
#include "core/formats/json.hpp"
#include "megahost/error.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>

namespace mh {

namespace {

constexpr uint64_t kLengthBytes = 8;
constexpr uint64_t kLongestHeader = 100'000'000;
constexpr const char* kMetadata = "__metadata__";

struct DtypeRow {
  std::string_view name;
  int64_t bits;
};

// clang-format off
constexpr std::array<DtypeRow, 22> kDtypes{{
    {"BOOL", 8}, {"F4", 4}, {"F6_E2M3", 6}, {"F6_E3M2", 6}, {"U8", 8}, {"I8", 8},
    {"F8_E5M2", 8}, {"F8_E4M3", 8}, {"F8_E8M0", 8}, {"F8_E4M3FNUZ", 8}, {"F8_E5M2FNUZ", 8},
    {"I16", 16}, {"U16", 16}, {"F16", 16}, {"BF16", 16}, {"I32", 32}, {"U32", 32}, {"F32", 32},
    {"C64", 64}, {"F64", 64}, {"I64", 64}, {"U64", 64},
}};

// clang-format on

[[noreturn]] void refuse(const std::string& file, const std::string& why) {
  throw Error(
      file + ": " + why, "the file is damaged, cut short, or no safetensors file", exit_code::data
  );
}

std::string of(const TensorInfo& tensor) {
  return "tensor " + printable(tensor.name);
}

uint64_t little_endian(std::span<const std::byte, kLengthBytes> bytes) {
  uint64_t value = 0;
  for (size_t i = kLengthBytes; i-- > 0;) {
    value = value << 8 | static_cast<uint64_t>(bytes[i]);
  }
  return value;
}

TensorInfo read_entry(
    const std::string& name,
    const nlohmann::json& entry,
    uint64_t data_begin,
    const std::string& file
) {
  TensorInfo tensor;
  tensor.name = name;
  const std::string where = file + ": " + of(tensor);
  const std::string& dtype = json_string(entry, "dtype", where);
  const auto known = dtype_from_name(dtype);
  if (!known) {
    refuse(where, "unknown dtype " + printable(dtype));
  }
  tensor.dtype = *known;

  const nlohmann::json& shape = json_member(entry, "shape", where);
  if (!shape.is_array() || !std::all_of(shape.begin(), shape.end(), is_json_size)) {
    refuse(where, "`shape` is no array of integers from 0 to 2^63 - 1");
  }
  tensor.shape = shape.get<std::vector<int64_t>>();
  const auto bytes = tensor_bytes(tensor.dtype, tensor.shape);
  if (!bytes) {
    refuse(
        where,
        "shape " + shape_text(tensor.shape) + " of " + dtype +
            " is no whole number of bytes or overflows"
    );
  }

  const nlohmann::json& offsets = json_member(entry, "data_offsets", where);
  if (!offsets.is_array() || offsets.size() != 2 || !is_json_size(offsets[0]) ||
      !is_json_size(offsets[1]) || offsets[0] > offsets[1]) {
    refuse(where, "`data_offsets` is no pair [begin, end]");
  }
  if (entry.size() != 3) {
    refuse(where, "fields other than dtype, shape and data_offsets");
  }
  const auto begin = offsets[0].get<uint64_t>();
  tensor.bytes = offsets[1].get<uint64_t>() - begin;
  if (tensor.bytes != *bytes) {
    refuse(
        where,
        "shape " + shape_text(tensor.shape) + " of " + dtype + " takes " + std::to_string(*bytes) +
            " bytes, but its data_offsets span " + std::to_string(tensor.bytes)
    );
  }
  tensor.offset = data_begin + begin; // both below 2^63
  return tensor;
}

std::map<std::string, std::string>
read_metadata(const nlohmann::json& entry, const std::string& file) {
  const auto is_string = [](const nlohmann::json& value) { return value.is_string(); };
  if (entry.is_null()) {
    return {};
  }
  if (!entry.is_object() || !std::all_of(entry.begin(), entry.end(), is_string)) {
    refuse(file, "__metadata__ is no object of strings");
  }
  return entry.get<std::map<std::string, std::string>>();
}

void check_no_holes(
    const std::vector<TensorInfo>& tensors,
    uint64_t data_begin,
    uint64_t file_bytes,
    const std::string& file
) {
  uint64_t end = data_begin;
  for (const TensorInfo& tensor : tensors) {
    if (tensor.offset != end) {
      refuse(
          file,
          of(tensor) +
              (tensor.offset > end ? " leaves a hole before it" : " overlaps the one before it")
      );
    }
    end += tensor.bytes;
    if (end > file_bytes) {
      refuse(
          file,
          of(tensor) + " ends at byte " + std::to_string(end) + ", but the file has only " +
              std::to_string(file_bytes) + " bytes"
      );
    }
  }
  if (end != file_bytes) {
    refuse(file, std::to_string(file_bytes - end) + " bytes after the last tensor");
  }
}

} // namespace

const TensorInfo* Safetensors::find(const std::string& name) const {
  const auto at = index.find(name);
  return at == index.end() ? nullptr : &tensors[at->second];
}

std::string_view dtype_name(Dtype dtype) {
  return kDtypes[static_cast<size_t>(dtype)].name;
}

int64_t dtype_bits(Dtype dtype) {
  return kDtypes[static_cast<size_t>(dtype)].bits;
}

std::optional<Dtype> dtype_from_name(std::string_view name) {
  for (size_t i = 0; i < kDtypes.size(); ++i) {
    if (kDtypes[i].name == name) {
      return static_cast<Dtype>(i);
    }
  }
  return std::nullopt;
}

std::optional<uint64_t> tensor_bytes(Dtype dtype, const std::vector<int64_t>& shape) {
  int64_t bits = dtype_bits(dtype);
  for (const int64_t size : shape) {
    if (size < 0 || __builtin_mul_overflow(bits, size, &bits)) {
      return std::nullopt;
    }
  }
  return bits % 8 == 0 ? std::optional(static_cast<uint64_t>(bits / 8)) : std::nullopt;
}

Safetensors read_safetensors(const ReadAt& read, uint64_t file_bytes, const std::string& file) {
  if (file_bytes < kLengthBytes) {
    refuse(
        file,
        "only " + std::to_string(file_bytes) +
            " bytes, expected at least the 8 of the header's length"
    );
  }
  std::array<std::byte, kLengthBytes> prefix;
  read(0, prefix);
  const uint64_t length = little_endian(prefix);
  if (length > kLongestHeader) {
    refuse(
        file,
        "the header claims " + std::to_string(length) + " bytes, expected at most " +
            std::to_string(kLongestHeader)
    );
  }
  if (length > file_bytes - kLengthBytes) {
    refuse(
        file,
        "the header claims " + std::to_string(length) + " bytes, but the file has only " +
            std::to_string(file_bytes)
    );
  }
  Safetensors result;
  result.file_bytes = file_bytes;
  result.header.resize(kLengthBytes + length);
  read(0, std::as_writable_bytes(std::span(result.header)));

  std::string_view json = std::string_view(result.header).substr(kLengthBytes);
  json = json.substr(0, json.find_last_not_of(' ') + 1);
  if (!json.starts_with('{') || !json.ends_with('}')) {
    refuse(file, "the header is no JSON object padded with blanks");
  }
  const nlohmann::json root = parse_json(json, file + ": header", {.depth = 3});
  const uint64_t data_begin = kLengthBytes + length;
  for (const auto& [name, entry] : root.items()) {
    if (name == kMetadata) {
      result.metadata = read_metadata(entry, file);
    } else {
      result.tensors.push_back(read_entry(name, entry, data_begin, file));
    }
  }
  std::stable_sort(
      result.tensors.begin(),
      result.tensors.end(),
      [](const TensorInfo& a, const TensorInfo& b) {
        return std::pair(a.offset, a.bytes) < std::pair(b.offset, b.bytes);
      }
  );
  check_no_holes(result.tensors, data_begin, file_bytes, file);
  for (size_t i = 0; i < result.tensors.size(); ++i) {
    result.index.emplace(result.tensors[i].name, i);
  }
  return result;
}

namespace {

std::string json_text(const std::string& text) {
  try {
    return nlohmann::json(text).dump();
  } catch (const nlohmann::json::type_error&) {
    throw Error("safetensors cannot hold " + printable(text) + ": no valid UTF-8");
  }
}

std::string header_json(
    const std::vector<TensorInfo>& tensors, const std::map<std::string, std::string>& metadata
) {
  std::string json = "{";
  if (!metadata.empty()) {
    json += "\"__metadata__\":{";
    for (const auto& [key, value] : metadata) {
      json += (json.ends_with('{') ? "" : ",") + json_text(key) + ":" + json_text(value);
    }
    json += "}";
  }
  uint64_t begin = 0;
  for (const TensorInfo& tensor : tensors) {
    json += (json == "{" ? "" : ",") + json_text(tensor.name) + ":{\"dtype\":\"" +
            std::string(dtype_name(tensor.dtype)) +
            "\",\"shape\":" + nlohmann::json(tensor.shape).dump() + ",\"data_offsets\":[" +
            std::to_string(begin) + "," + std::to_string(begin + tensor.bytes) + "]}";
    begin += tensor.bytes;
  }
  return json + "}";
}

} // namespace

Safetensors
lay_out_safetensors(std::vector<TensorInfo> tensors, std::map<std::string, std::string> metadata) {
  std::sort(tensors.begin(), tensors.end(), [](const TensorInfo& a, const TensorInfo& b) {
    return a.dtype != b.dtype ? a.dtype > b.dtype : a.name < b.name;
  });
  Safetensors result;
  int64_t total = 0;
  for (size_t i = 0; i < tensors.size(); ++i) {
    TensorInfo& tensor = tensors[i];
    const auto bytes = tensor_bytes(tensor.dtype, tensor.shape);
    if (!bytes || __builtin_add_overflow(total, *bytes, &total)) {
      throw Error(
          "safetensors cannot hold " + of(tensor) + " of shape " + shape_text(tensor.shape)
      );
    }
    if (tensor.name == kMetadata) {
      throw Error("safetensors cannot hold a tensor named __metadata__");
    }
    if (!result.index.emplace(tensor.name, i).second) {
      throw Error("safetensors cannot hold two tensors named " + printable(tensor.name));
    }
    tensor.bytes = *bytes;
  }
  std::string json = header_json(tensors, metadata);
  json.append((kLengthBytes - json.size() % kLengthBytes) % kLengthBytes, ' ');
  for (size_t i = 0; i < kLengthBytes; ++i) {
    result.header += static_cast<char>(json.size() >> (8 * i) & 0xFF);
  }
  result.header += json;
  result.file_bytes = result.header.size();
  for (TensorInfo& tensor : tensors) {
    tensor.offset = result.file_bytes;
    result.file_bytes += tensor.bytes;
  }
  result.metadata = std::move(metadata);
  result.tensors = std::move(tensors);
  return result;
}

} // namespace mh
