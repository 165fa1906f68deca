#pragma once
/// CRC-32C, the checksum of checkpoints.
///
/// ```cpp
/// uint32_t sum = mh::crc32c(first);
/// sum = mh::crc32c(second, sum);  // checksum of both, one after the other
/// ```

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace mh {

/// The checksum of `bytes` appended to bytes whose checksum is `before`.
///
/// Source:  RFC 3720, appendix B.4 (polynomial 0x1EDC6F41, reflected)
[[nodiscard]] uint32_t crc32c(std::span<const std::byte> bytes, uint32_t before = 0);
[[nodiscard]] uint32_t crc32c(std::string_view text, uint32_t before = 0);

/// The same without the processor's instruction; for machines that lack it, and for tests.
[[nodiscard]] uint32_t crc32c_portable(std::span<const std::byte> bytes, uint32_t before = 0);

/// The checksum of some bytes and of `second_bytes` others after them, of the checksums of both.
[[nodiscard]] uint32_t crc32c_joined(uint32_t first, uint32_t second, uint64_t second_bytes);

/// Eight hexadecimal digits.
[[nodiscard]] std::string crc_text(uint32_t crc);
[[nodiscard]] std::optional<uint32_t> crc_from_text(std::string_view text);

} // namespace mh
