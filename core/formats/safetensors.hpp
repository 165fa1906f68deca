#pragma once
/// The safetensors format: 8 bytes of header length N (little endian), N bytes of JSON, then the
/// tensors' bytes one after the other without a gap, row-major, little endian.
///
/// This room knows bytes only: who reads says how bytes are read, who writes gets the header and
/// the order of the tensors.
///
/// Source:  https://github.com/huggingface/safetensors, README, "Format"; stricter where that is
/// loose

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace mh {

/// The types in the format's own order, which is also the (reversed) order of tensors in a file.
// clang-format off
enum class Dtype : uint8_t {
  boolean, f4, f6_e2m3, f6_e3m2, u8, i8, f8_e5m2, f8_e4m3, f8_e8m0, f8_e4m3fnuz, f8_e5m2fnuz,
  i16, u16, f16, bf16, i32, u32, f32, c64, f64, i64, u64,
};
// clang-format on

/// "BF16".
[[nodiscard]] std::string_view dtype_name(Dtype dtype);
[[nodiscard]] std::optional<Dtype> dtype_from_name(std::string_view name);
[[nodiscard]] int64_t dtype_bits(Dtype dtype);

struct TensorInfo {
  std::string name; ///< any text, also "../x" or a line break: print it through `printable`
  Dtype dtype = Dtype::f32;
  std::vector<int64_t> shape; ///< [] for a scalar; sizes may be 0
  uint64_t offset = 0;        ///< offset of the first byte from the start of the file
  uint64_t bytes = 0;
};

/// Bytes of a tensor, if that is a whole number and fits 63 bits; sizes must not be negative.
[[nodiscard]] std::optional<uint64_t> tensor_bytes(Dtype dtype, const std::vector<int64_t>& shape);

/// Reads exactly `into.size()` bytes at `offset`, or throws.
using ReadAt = std::function<void(uint64_t offset, std::span<std::byte> into)>;

struct Safetensors {
  std::map<std::string, std::string> metadata;
  std::vector<TensorInfo> tensors; ///< tensors in the order of the file
  std::string header;              ///< everything before the first tensor's bytes
  uint64_t file_bytes = 0;

  /// The tensor of this name, or nullptr.
  [[nodiscard]] const TensorInfo* find(const std::string& name) const;

  std::unordered_map<std::string, size_t> index; ///< name to place in `tensors`
};

/// Reads the header of a file of `file_bytes` bytes and checks every rule of the format against
/// them, so that each tensor's offset and bytes can be trusted. `file` names it in messages.
///
/// Throws:  mh::Error (exit code 5): header longer than 100 MB or than the file; not one JSON
/// object in
///          UTF-8 from its first byte, padded with blanks only; a name or key given twice; fields
///          other than dtype, shape and data_offsets; unknown dtype; sizes that overflow or do not
///          match the offsets; a hole, an overlap, missing or trailing bytes
[[nodiscard]] Safetensors
read_safetensors(const ReadAt& read, uint64_t file_bytes, const std::string& file);

/// Lays out a file for tensors of which name, dtype and shape are given. Write `header`, then the
/// bytes of each of `tensors` in that order (dtypes from the widest, then names: each tensor is
/// aligned to its element). The same input gives the same bytes, whatever its order.
///
/// Throws:  mh::Error if a name is given twice, is "__metadata__", or is no UTF-8, or if a size is
///          negative or overflows
[[nodiscard]] Safetensors lay_out_safetensors(
    std::vector<TensorInfo> tensors, std::map<std::string, std::string> metadata = {}
);

} // namespace mh
