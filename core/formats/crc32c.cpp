#include "core/formats/crc32c.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>

#if defined(__x86_64__)
#include <nmmintrin.h>
#endif

namespace mh {

namespace {

constexpr uint32_t kPolynomial = 0x82F63B78;

constexpr std::array<uint32_t, 256> make_table() {
  std::array<uint32_t, 256> table{};
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t crc = i;
    for (int bit = 0; bit < 8; ++bit) {
      crc = crc >> 1 ^ (crc & 1 ? kPolynomial : 0);
    }
    table[i] = crc;
  }
  return table;
}

constexpr std::array<uint32_t, 256> kTable = make_table();

#if defined(__x86_64__)
constexpr size_t kThirdsFrom = 256 << 10; // bytes from which it pays to join sums

/// Bytes one after the other in each of N parts of the same size, one part behind the other: an
/// instruction takes three cycles, and those of other parts go on meanwhile.
template <size_t N>
__attribute__((target("sse4.2"))) void
crc32c_sse42(const std::byte* at, size_t size, std::array<uint32_t, N>& ret_sums) {
  std::array<uint64_t, N> crc{};
  std::transform(ret_sums.begin(), ret_sums.end(), crc.begin(), [](uint32_t sum) {
    return uint32_t{~sum};
  });
  size_t done = 0;
  for (; size - done >= 8; done += 8) {
#pragma GCC unroll 3
    for (size_t part = 0; part < N; ++part) { // in registers
      uint64_t word;
      std::memcpy(&word, at + part * size + done, 8);
      crc[part] = _mm_crc32_u64(crc[part], word);
    }
  }
  for (; done < size; ++done) {
    for (size_t part = 0; part < N; ++part) {
      const auto byte = static_cast<uint8_t>(at[part * size + done]);
      crc[part] = _mm_crc32_u8(static_cast<uint32_t>(crc[part]), byte);
    }
  }
  std::transform(crc.begin(), crc.end(), ret_sums.begin(), [](uint64_t sum) {
    return ~static_cast<uint32_t>(sum);
  });
}
#endif

/// The product of two polynomials, reflected, modulo that of the checksum.
uint32_t product(uint32_t a, uint32_t b) {
  uint32_t sum = 0;
  for (uint32_t term = uint32_t{1} << 31; term != 0; term >>= 1) {
    sum ^= a & term ? b : 0;
    b = b >> 1 ^ (b & 1 ? kPolynomial : 0);
  }
  return sum;
}

} // namespace

uint32_t crc32c_portable(std::span<const std::byte> bytes, uint32_t before) {
  uint32_t crc = ~before;
  for (const std::byte byte : bytes) {
    crc = crc >> 8 ^ kTable[(crc ^ static_cast<uint32_t>(byte)) & 0xFF];
  }
  return ~crc;
}

uint32_t crc32c(std::span<const std::byte> bytes, uint32_t before) {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("sse4.2")) {
    std::array<uint32_t, 1> sum{before};
    if (bytes.size() >= kThirdsFrom) {
      const size_t third = bytes.size() / 3;
      std::array<uint32_t, 3> sums{before, 0, 0};
      crc32c_sse42(bytes.data(), third, sums);
      sum[0] = crc32c_joined(crc32c_joined(sums[0], sums[1], third), sums[2], third);
      bytes = bytes.subspan(3 * third);
    }
    crc32c_sse42(bytes.data(), bytes.size(), sum);
    return sum[0];
  }
#endif
  return crc32c_portable(bytes, before);
}

uint32_t crc32c_joined(uint32_t first, uint32_t second, uint64_t second_bytes) {
  uint32_t shift = uint32_t{1} << 31; // x to the power of 8 * second_bytes
  uint32_t power = uint32_t{1} << 23; // x^8, x^16, x^32, ...
  for (; second_bytes > 0; second_bytes >>= 1) {
    shift = second_bytes & 1 ? product(shift, power) : shift;
    power = product(power, power);
  }
  return product(shift, first) ^ second;
}

uint32_t crc32c(std::string_view text, uint32_t before) {
  return crc32c(std::as_bytes(std::span(text.data(), text.size())), before);
}

std::string crc_text(uint32_t crc) {
  std::string text(8, '0');
  for (size_t i = 0; i < 8; ++i) {
    text[i] = "0123456789abcdef"[crc >> (28 - 4 * i) & 15];
  }
  return text;
}

std::optional<uint32_t> crc_from_text(std::string_view text) {
  uint32_t crc = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), crc, 16);
  const bool exact = text.size() == 8 && error == std::errc() && end == text.data() + text.size();
  return exact && crc_text(crc) == text ? std::optional(crc) : std::nullopt;
}

} // namespace mh
