// Event files: bytes worked out by hand from the published formats, and every record's frame.

#include "core/formats/event_file.hpp"

#include "core/formats/crc32c.hpp"

#include <doctest/doctest.h>

#include <array>
#include <cstring>
#include <vector>

namespace event_file_tests {

namespace {

uint64_t number(std::string_view bytes, size_t at, size_t size) {
  uint64_t value = 0;
  std::memcpy(&value, bytes.substr(at, size).data(), size);
  return value;
}

uint32_t masked(std::string_view bytes) {
  const uint32_t crc = mh::crc32c(bytes);
  return (crc >> 15 | crc << 17) + 0xa282ead8U;
}

/// The contents of the records, whose frames are checked on the way.
std::vector<std::string> records(std::string_view file) {
  std::vector<std::string> contents;
  while (!file.empty()) {
    const auto length = static_cast<size_t>(number(file, 0, 8));
    REQUIRE(file.size() >= length + 16);
    CHECK(number(file, 8, 4) == masked(file.substr(0, 8)));
    CHECK(number(file, 12 + length, 4) == masked(file.substr(12, length)));
    contents.emplace_back(file.substr(12, length));
    file.remove_prefix(length + 16);
  }
  return contents;
}

std::string bytes(std::initializer_list<int> values) {
  std::string text;
  for (const int value : values) {
    text += static_cast<char>(value);
  }
  return text;
}

// 1.0 as a double, and as a float.
const std::string kTime = bytes({0x09, 0, 0, 0, 0, 0, 0, 0xf0, 0x3f});
const std::string kOne = bytes({0, 0, 0x80, 0x3f});

} // namespace

TEST_CASE("a record is framed as TFRecord frames it") {
  CHECK(mh::event_record("").size() == 16);
  const std::string record = mh::event_record("123456789");
  // The checksum of "123456789" is 0xe3069283; rotated right by 15 bits, plus 0xa282ead8.
  CHECK(number(record, 21, 4) == 0xc78ab0e5U);
  CHECK(records(record) == std::vector<std::string>{"123456789"});
}

TEST_CASE("a file begins with its version and a session record of its first step") {
  const auto start = records(mh::event_file_start(1.0, 300));
  REQUIRE(start.size() == 2);
  CHECK(start[0] == kTime + bytes({0x10, 0, 0x1a, 13}) + "brain.Event:2");
  CHECK(start[1] == kTime + bytes({0x10, 0xac, 0x02, 0x3a, 2, 0x08, 0x01}));
}

TEST_CASE("scalars are values of one summary") {
  const std::array<mh::EventScalar, 2> scalars{{{"a", 1.0}, {"bc", 1.0}}};
  const auto event = records(mh::scalars_event(1.0, 5, scalars));
  REQUIRE(event.size() == 1);
  const std::string first = bytes({0x0a, 8, 0x0a, 1}) + "a" + bytes({0x15}) + kOne;
  const std::string second = bytes({0x0a, 9, 0x0a, 2}) + "bc" + bytes({0x15}) + kOne;
  CHECK(event[0] == kTime + bytes({0x10, 5, 0x2a, 21}) + first + second);
}

TEST_CASE("text is a tensor of one string for the text page") {
  const auto event = records(mh::text_event(1.0, 0, "t", "hi"));
  REQUIRE(event.size() == 1);
  const std::string tag = bytes({0x0a, 14}) + "t/text_summary";
  const std::string tensor = bytes({0x42, 12, 0x08, 7, 0x12, 4, 0x12, 2, 0x08, 1, 0x42, 2}) + "hi";
  const std::string metadata = bytes({0x4a, 8, 0x0a, 6, 0x0a, 4}) + "text";
  const std::string value = tag + tensor + metadata;
  CHECK(
      event[0] == kTime + bytes({0x10, 0, 0x2a, static_cast<int>(value.size()) + 2, 0x0a}) +
                      bytes({static_cast<int>(value.size())}) + value
  );
}

TEST_CASE("negative steps take ten bytes") {
  const auto start = records(mh::event_file_start(1.0, -1));
  CHECK(start[1].substr(9, 11) == bytes({0x10}) + std::string(9, '\xff') + bytes({0x01}));
}

} // namespace event_file_tests
