#include "core/formats/zip.hpp"

#include "core/base/printable.hpp"
#include "megahost/error.hpp"

#include <algorithm>
#include <array>
#include <set>

namespace mh {

namespace {

constexpr uint32_t kLocal = 0x04034b50, kCentral = 0x02014b50, kEnd = 0x06054b50;
constexpr uint32_t kEnd64 = 0x06064b50, kLocator64 = 0x07064b50;
constexpr uint64_t kLocalBytes = 30, kCentralBytes = 46, kEndBytes = 22;
constexpr uint64_t kEnd64Bytes = 56, kLocatorBytes = 20;
constexpr uint64_t kMost32 = 0xFFFFFFFF;
constexpr uint64_t kMost16 = 0xFFFF;
constexpr uint64_t kLongestDirectory = uint64_t{256} << 20;
constexpr uint16_t kExtra64 = 0x0001, kPadding = 0x4246; // "FB", which PyTorch pads with

[[noreturn]] void refuse_zip(const std::string& file, const std::string& why) {
  throw Error(
      file + ": " + why,
      "the file is damaged, cut short, or no zip file as torch.save writes it",
      exit_code::data
  );
}

uint64_t unsigned_at(std::string_view bytes, size_t at, size_t count) {
  uint64_t value = 0;
  for (size_t i = count; i-- > 0;) {
    value = value << 8 | static_cast<uint8_t>(bytes[at + i]);
  }
  return value;
}

void put_unsigned(std::string& ret_out, uint64_t value, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    ret_out += static_cast<char>(value >> (8 * i));
  }
}

/// Reads of one zip, within its bounds.
class ZipBytes {
public:
  ZipBytes(const ReadAt& read, uint64_t size, const std::string& file)
      : read_(read)
      , size_(size)
      , file_(file) {}

  [[nodiscard]] std::string at(uint64_t offset, uint64_t count, const std::string& what) const {
    if (offset > size_ || count > size_ - offset) {
      refuse_zip(
          file_,
          what + " at byte " + std::to_string(offset) + " would end after its " +
              std::to_string(size_) + " bytes"
      );
    }
    std::string bytes(count, '\0');
    read_(offset, std::as_writable_bytes(std::span(bytes)));
    return bytes;
  }

private:
  const ReadAt& read_;
  uint64_t size_;
  const std::string& file_;
};

struct Directory {
  uint64_t offset = 0, bytes = 0, entries = 0;
};

Directory find_directory(const ZipBytes& bytes, uint64_t size, const std::string& file) {
  if (size < kEndBytes) {
    refuse_zip(file, std::to_string(size) + " bytes are no zip file");
  }
  const std::string end = bytes.at(size - kEndBytes, kEndBytes, "its end");
  if (unsigned_at(end, 0, 4) != kEnd || unsigned_at(end, 20, 2) != 0) {
    refuse_zip(file, "it does not end as a zip file without a comment");
  }
  Directory found{unsigned_at(end, 16, 4), unsigned_at(end, 12, 4), unsigned_at(end, 10, 2)};
  if (unsigned_at(end, 4, 2) != 0 || unsigned_at(end, 8, 2) != found.entries) {
    refuse_zip(file, "it is a part of a zip file of several");
  }
  if (found.offset < kMost32 && found.bytes < kMost32 && found.entries < kMost16) {
    return found;
  }
  const std::string where = "its end of 64 bits";
  if (size < kEndBytes + kLocatorBytes) {
    refuse_zip(file, "it has no end of 64 bits, though it needs one");
  }
  const std::string locator = bytes.at(size - kEndBytes - kLocatorBytes, kLocatorBytes, where);
  if (unsigned_at(locator, 0, 4) != kLocator64) {
    refuse_zip(file, "it has no end of 64 bits, though it needs one");
  }
  const std::string wide = bytes.at(unsigned_at(locator, 8, 8), kEnd64Bytes, where);
  if (unsigned_at(wide, 0, 4) != kEnd64 || unsigned_at(wide, 24, 8) != unsigned_at(wide, 32, 8)) {
    refuse_zip(file, "its end of 64 bits is none");
  }
  return {unsigned_at(wide, 48, 8), unsigned_at(wide, 40, 8), unsigned_at(wide, 32, 8)};
}

/// Sizes and places that did not fit 32 bits, in the order of the format.
void widen(
    std::string_view extra,
    std::array<uint64_t*, 3> values,
    const std::string& file,
    const std::string& name
) {
  while (extra.size() >= 4) {
    const uint64_t id = unsigned_at(extra, 0, 2), length = unsigned_at(extra, 2, 2);
    if (length > extra.size() - 4) {
      break;
    }
    std::string_view field = extra.substr(4, length);
    extra.remove_prefix(4 + length);
    if (id != kExtra64) {
      continue;
    }
    for (uint64_t* value : values) {
      if (value != nullptr && *value == kMost32) {
        if (field.size() < 8) {
          refuse_zip(file, "entry " + printable(name) + " has no size of 64 bits");
        }
        *value = unsigned_at(field, 0, 8);
        field.remove_prefix(8);
      }
    }
    return;
  }
}

/// The entry at the start of `rest`, which it is cut off from.
ZipEntry read_central(std::string_view& ret_rest, const std::string& file) {
  if (ret_rest.size() < kCentralBytes || unsigned_at(ret_rest, 0, 4) != kCentral) {
    refuse_zip(file, "its directory holds something else than entries");
  }
  const uint64_t name = unsigned_at(ret_rest, 28, 2), extra = unsigned_at(ret_rest, 30, 2),
                 comment = unsigned_at(ret_rest, 32, 2);
  if (ret_rest.size() - kCentralBytes < name + extra + comment) {
    refuse_zip(file, "its directory is cut short");
  }
  ZipEntry entry;
  entry.name = ret_rest.substr(kCentralBytes, name);
  entry.crc32 = static_cast<uint32_t>(unsigned_at(ret_rest, 16, 4));
  uint64_t packed = unsigned_at(ret_rest, 20, 4);
  entry.bytes = unsigned_at(ret_rest, 24, 4);
  entry.offset = unsigned_at(ret_rest, 42, 4); // where its local header is, for now
  widen(
      ret_rest.substr(kCentralBytes + name, extra),
      {&entry.bytes, &packed, &entry.offset},
      file,
      entry.name
  );
  const uint64_t flags = unsigned_at(ret_rest, 8, 2), method = unsigned_at(ret_rest, 10, 2);
  if ((flags & 0x2041) != 0 || method != 0 || packed != entry.bytes) {
    refuse_zip(file, "entry " + printable(entry.name) + " is compressed or encrypted");
  }
  ret_rest.remove_prefix(kCentralBytes + name + extra + comment);
  return entry;
}

/// From the place of its header to that of its bytes.
void locate_entry(ZipEntry& ret_entry, const ZipBytes& bytes, const std::string& file) {
  const std::string what = "entry " + printable(ret_entry.name);
  const std::string header = bytes.at(ret_entry.offset, kLocalBytes + ret_entry.name.size(), what);
  if (unsigned_at(header, 0, 4) != kLocal || unsigned_at(header, 8, 2) != 0 ||
      unsigned_at(header, 26, 2) != ret_entry.name.size() ||
      header.compare(kLocalBytes, std::string::npos, ret_entry.name) != 0) {
    refuse_zip(file, what + " has another header than the directory says");
  }
  ret_entry.offset += header.size() + unsigned_at(header, 28, 2);
}

void check_apart(const std::vector<ZipEntry>& entries, uint64_t end, const std::string& file) {
  std::vector<const ZipEntry*> sorted;
  std::set<std::string_view> names;
  for (const ZipEntry& entry : entries) {
    if (!names.insert(entry.name).second) {
      refuse_zip(file, "two entries " + printable(entry.name));
    }
    sorted.push_back(&entry);
  }
  std::sort(sorted.begin(), sorted.end(), [](const ZipEntry* a, const ZipEntry* b) {
    return a->offset < b->offset;
  });
  for (size_t i = 0; i < sorted.size(); ++i) {
    const uint64_t next = i + 1 < sorted.size() ? sorted[i + 1]->offset : end;
    if (sorted[i]->offset > next || sorted[i]->bytes > next - sorted[i]->offset) {
      refuse_zip(
          file,
          "entry " + printable(sorted[i]->name) + " of " + std::to_string(sorted[i]->bytes) +
              " bytes at byte " + std::to_string(sorted[i]->offset) +
              " reaches over what comes after it"
      );
    }
  }
}

} // namespace

std::vector<ZipEntry> read_zip(const ReadAt& read, uint64_t size, const std::string& file) {
  const ZipBytes bytes(read, size, file);
  const Directory directory = find_directory(bytes, size, file);
  if (directory.bytes > kLongestDirectory || directory.entries > directory.bytes / kCentralBytes) {
    refuse_zip(
        file,
        "a directory of " + std::to_string(directory.entries) + " entries in " +
            std::to_string(directory.bytes) + " bytes"
    );
  }
  const std::string text = bytes.at(directory.offset, directory.bytes, "its directory");
  std::string_view rest = text;
  std::vector<ZipEntry> entries;
  for (uint64_t i = 0; i < directory.entries; ++i) {
    entries.push_back(read_central(rest, file));
    locate_entry(entries.back(), bytes, file);
  }
  if (!rest.empty()) {
    refuse_zip(file, "its directory is longer than its entries");
  }
  check_apart(entries, directory.offset, file);
  return entries;
}

std::string
ZipLayout::entry(const std::string& name, uint64_t bytes, uint32_t crc32, size_t alignment) {
  MH_ASSERT(name.size() < kMost16 && alignment > 0, "an entry of a zip");
  const bool is_wide = bytes >= kMost32, is_far = at_ >= kMost32;
  std::string extra;
  if (is_wide) {
    put_unsigned(extra, kExtra64, 2);
    put_unsigned(extra, 16, 2);
    put_unsigned(extra, bytes, 8);
    put_unsigned(extra, bytes, 8);
  }
  const uint64_t begin = at_ + kLocalBytes + name.size() + extra.size() + 4;
  const uint64_t padding = (alignment - begin % alignment) % alignment;
  put_unsigned(extra, kPadding, 2);
  put_unsigned(extra, padding, 2);
  extra.append(padding, 'Z');

  const uint64_t short_size = is_wide ? kMost32 : bytes;
  std::string shared; // what both headers share: from the version needed to the name's length
  put_unsigned(shared, is_wide || is_far ? 45 : 20, 2);
  put_unsigned(shared, 0, 2);    // flags
  put_unsigned(shared, 0, 2);    // stored
  put_unsigned(shared, 0, 2);    // time
  put_unsigned(shared, 0x21, 2); // 1 January 1980
  put_unsigned(shared, crc32, 4);
  put_unsigned(shared, short_size, 4);
  put_unsigned(shared, short_size, 4);
  put_unsigned(shared, name.size(), 2);

  std::string local;
  put_unsigned(local, kLocal, 4);
  local += shared;
  put_unsigned(local, extra.size(), 2);
  local += name + extra;

  std::string wide;
  if (is_wide || is_far) {
    put_unsigned(wide, kExtra64, 2);
    put_unsigned(wide, (is_wide ? 16 : 0) + (is_far ? 8 : 0), 2);
    if (is_wide) {
      put_unsigned(wide, bytes, 8);
      put_unsigned(wide, bytes, 8);
    }
    if (is_far) {
      put_unsigned(wide, at_, 8);
    }
  }
  put_unsigned(directory_, kCentral, 4);
  put_unsigned(directory_, 45, 2); // made by
  directory_ += shared;
  put_unsigned(directory_, wide.size(), 2);
  directory_.append(10, '\0'); // no comment, first disk, attributes
  put_unsigned(directory_, is_far ? kMost32 : at_, 4);
  directory_ += name + wide;

  at_ += local.size() + bytes;
  ++entries_;
  return local;
}

std::string ZipLayout::finish() {
  const bool is_wide = at_ >= kMost32 || entries_ >= kMost16;
  std::string end = directory_;
  const uint64_t end64 = at_ + end.size();
  if (is_wide) {
    put_unsigned(end, kEnd64, 4);
    put_unsigned(end, kEnd64Bytes - 12, 8);
    put_unsigned(end, 45, 2);
    put_unsigned(end, 45, 2);
    put_unsigned(end, 0, 8); // disks
    put_unsigned(end, entries_, 8);
    put_unsigned(end, entries_, 8);
    put_unsigned(end, directory_.size(), 8);
    put_unsigned(end, at_, 8);
    put_unsigned(end, kLocator64, 4);
    put_unsigned(end, 0, 4);
    put_unsigned(end, end64, 8);
    put_unsigned(end, 1, 4);
  }
  put_unsigned(end, kEnd, 4);
  put_unsigned(end, 0, 4);
  put_unsigned(end, is_wide ? kMost16 : entries_, 2);
  put_unsigned(end, is_wide ? kMost16 : entries_, 2);
  put_unsigned(end, is_wide ? kMost32 : directory_.size(), 4);
  put_unsigned(end, is_wide ? kMost32 : at_, 4);
  put_unsigned(end, 0, 2);
  return end;
}

namespace {

using CrcTables = std::array<std::array<uint32_t, 256>, 8>;

/// Eight bytes a step: table k is that of a byte with k zero bytes after it.
constexpr CrcTables crc_tables() {
  CrcTables tables{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) {
      crc = crc >> 1 ^ (crc & 1 ? 0xEDB88320 : 0);
    }
    tables[0][byte] = crc;
  }
  for (size_t k = 1; k < 8; ++k) {
    for (size_t byte = 0; byte < 256; ++byte) {
      const uint32_t before = tables[k - 1][byte];
      tables[k][byte] = before >> 8 ^ tables[0][before & 0xFF];
    }
  }
  return tables;
}

constexpr CrcTables kCrcTables = crc_tables();

} // namespace

uint32_t crc32(std::span<const std::byte> bytes, uint32_t before) {
  uint32_t crc = ~before;
  const auto* at = reinterpret_cast<const uint8_t*>(bytes.data());
  size_t left = bytes.size();
  for (; left >= 8; left -= 8, at += 8) {
    const uint32_t low =
        crc ^ (at[0] | uint32_t{at[1]} << 8 | uint32_t{at[2]} << 16 | uint32_t{at[3]} << 24);
    crc = kCrcTables[7][low & 0xFF] ^ kCrcTables[6][low >> 8 & 0xFF] ^
          kCrcTables[5][low >> 16 & 0xFF] ^ kCrcTables[4][low >> 24] ^ kCrcTables[3][at[4]] ^
          kCrcTables[2][at[5]] ^ kCrcTables[1][at[6]] ^ kCrcTables[0][at[7]];
  }
  for (; left > 0; --left, ++at) {
    crc = crc >> 8 ^ kCrcTables[0][(crc ^ *at) & 0xFF];
  }
  return ~crc;
}

uint32_t crc32(std::string_view text, uint32_t before) {
  return crc32(std::as_bytes(std::span(text)), before);
}

} // namespace mh
