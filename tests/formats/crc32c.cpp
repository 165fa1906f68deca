#include "core/formats/crc32c.hpp"

#include <doctest/doctest.h>

#include <random>
#include <vector>

namespace crc32c_tests {

TEST_CASE("the test vectors of RFC 3720, B.4") {
  const std::vector<std::byte> zeros(32, std::byte{0});
  const std::vector<std::byte> ones(32, std::byte{0xFF});
  std::vector<std::byte> up(32);
  for (size_t i = 0; i < up.size(); ++i) {
    up[i] = static_cast<std::byte>(i);
  }
  CHECK(mh::crc32c(zeros) == 0x8A9136AA);
  CHECK(mh::crc32c(ones) == 0x62A8AB43);
  CHECK(mh::crc32c(up) == 0x46DD794E);
  CHECK(mh::crc32c("123456789") == 0xE3069283);
  CHECK(mh::crc32c("") == 0);
}

TEST_CASE("the instruction, the table and any division into parts agree") {
  std::mt19937 random(1);
  std::vector<std::byte> bytes(1000);
  for (std::byte& byte : bytes) {
    byte = static_cast<std::byte>(random());
  }
  for (size_t length = 0; length < 70; ++length) {
    const auto part = std::span(bytes).subspan(length % 9, length);
    CHECK(mh::crc32c(part) == mh::crc32c_portable(part));
  }
  std::vector<std::byte> large(1'000'003);
  for (std::byte& byte : large) {
    byte = static_cast<std::byte>(random());
  }
  for (const size_t length : {(256 << 10) - 1, 256 << 10, (256 << 10) + 1, 1'000'000}) {
    const auto part = std::span(large).subspan(3, length); // which is summed up in thirds
    CHECK(mh::crc32c(part, 77) == mh::crc32c_portable(part, 77));
  }
  const uint32_t whole = mh::crc32c(bytes);
  for (size_t cut = 0; cut <= bytes.size(); ++cut) {
    const auto all = std::span<const std::byte>(bytes);
    const uint32_t first = mh::crc32c(all.first(cut)), second = mh::crc32c(all.subspan(cut));
    CHECK(mh::crc32c(all.subspan(cut), first) == whole);
    CHECK(mh::crc32c_joined(first, second, bytes.size() - cut) == whole);
  }
}

TEST_CASE("as text") {
  CHECK(mh::crc_text(0x0012ABCD) == "0012abcd");
  CHECK(mh::crc_from_text("0012abcd") == 0x0012ABCD);
  for (const char* bad :
       {"", "12abcd", "0012abcde", "0012ABCD", "0012abcx", "-012abcd", " 012abcd"}) {
    CAPTURE(bad);
    CHECK_FALSE(mh::crc_from_text(bad));
  }
}

} // namespace crc32c_tests
