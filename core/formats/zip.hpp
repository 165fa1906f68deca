#pragma once
/// Zip files whose entries are stored as they are, as torch.save writes them: the directory only,
/// so that entries can be read where they lie. Zip64, too. No LibTorch.
///
/// ```cpp
/// for (const mh::ZipEntry& entry : mh::read_zip(read, size, "model.pt")) { }
/// ```
///
/// Source:  PKWARE APPNOTE 6.3.9, sections 4.3 and 4.5.3

#include "core/formats/safetensors.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace mh {

struct ZipEntry {
  std::string name;    ///< any text: print it through `printable`, never take it for a path
  uint64_t offset = 0; ///< offset of its first byte from the start of the zip
  uint64_t bytes = 0;
  uint32_t crc32 = 0; ///< checksum by `crc32` below
};

/// The entries in the order of the directory, each inside of the zip and none over another.
/// `file` names it in messages.
///
/// Throws:  mh::Error (exit code 5): no zip, or one with a comment; an entry that is compressed or
///          encrypted; a name given twice; a header that says something else than the directory
[[nodiscard]] std::vector<ZipEntry>
read_zip(const ReadAt& read, uint64_t size, const std::string& file);

/// Lays out a zip, entry by entry, of which each one's bytes are given or only told of:
///
/// ```cpp
/// mh::ZipLayout zip;
/// std::string bytes = zip.entry("archive/version", 2, mh::crc32("3\n")) + "3\n";
/// bytes += zip.finish();
/// ```
class ZipLayout {
public:
  /// The bytes before those of the next entry, which then begin at a multiple of `alignment`.
  [[nodiscard]] std::string
  entry(const std::string& name, uint64_t bytes, uint32_t crc32, size_t alignment = 64);
  /// The bytes after the last entry.
  [[nodiscard]] std::string finish();

private:
  std::string directory_;
  uint64_t at_ = 0, entries_ = 0;
};

/// The checksum of zip files: of `bytes` appended to bytes whose checksum is `before`.
///
/// Source:  ISO 3309 (polynomial 0x04C11DB7, reflected)
[[nodiscard]] uint32_t crc32(std::span<const std::byte> bytes, uint32_t before = 0);
[[nodiscard]] uint32_t crc32(std::string_view text, uint32_t before = 0);

} // namespace mh
