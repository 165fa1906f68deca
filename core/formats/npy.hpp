#pragma once
/// NumPy's arrays on disk (.npy, versions 1 and 2): the header only, so that the numbers can stay
/// where they are. No LibTorch.
///
/// "\x93NUMPY", u8 major, u8 minor, u16 (version 1) or u32 length; then a Python dictionary as
/// text, {'descr': '<i4', 'fortran_order': False, 'shape': (3, 2), }, filled up with blanks so that
/// the numbers begin at a multiple of 64.
///
/// Source:  numpy/lib/_format_impl.py

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace mh {

struct NpyLayout {
  std::string type; ///< type in numpy's notation: "<i4", "|u1"
  std::vector<uint64_t> shape;
  size_t begin = 0; ///< byte where the numbers begin

  /// Product of the shape.
  [[nodiscard]] uint64_t count() const;
};

/// Whether bytes begin as such a file does.
[[nodiscard]] bool is_npy(std::span<const std::byte> bytes);

/// Checks the header against the size of the file: C order, and as many bytes as shape and type
/// say. `file` names it in messages.
///
/// Throws:  mh::Error (exit code 5) "FILE: ..."
[[nodiscard]] NpyLayout read_npy(std::span<const std::byte> bytes, const std::string& file);

/// The bytes before the numbers, of version 1 as numpy.save writes them.
[[nodiscard]] std::string npy_header(std::string_view type, std::span<const uint64_t> shape);

} // namespace mh
