#include "core/formats/event_file.hpp"

#include "core/formats/crc32c.hpp"

#include <bit>

namespace mh {

namespace {

// The numbers of the fields are those of TensorBoard's event.proto, summary.proto and tensor.proto.
constexpr uint64_t kSessionStarts = 1;
constexpr uint64_t kStringType = 7;

template <class Number>
std::string little_endian(Number number) {
  std::string bytes;
  for (size_t i = 0; i < sizeof(number); ++i) {
    bytes += static_cast<char>(number >> (8 * i) & 0xff);
  }
  return bytes;
}

std::string varint(uint64_t number) {
  std::string bytes;
  for (; number >= 0x80; number >>= 7) {
    bytes += static_cast<char>(number | 0x80);
  }
  return bytes + static_cast<char>(number);
}

enum class Wire : uint8_t { varint = 0, fixed64 = 1, bytes = 2, fixed32 = 5 };

std::string key(uint32_t field, Wire wire) {
  return varint(field << 3 | static_cast<uint32_t>(wire));
}

std::string number_field(uint32_t field, uint64_t number) {
  return key(field, Wire::varint) + varint(number);
}

std::string bytes_field(uint32_t field, std::string_view bytes) {
  return key(field, Wire::bytes) + varint(bytes.size()) + std::string(bytes);
}

std::string float_field(uint32_t field, float number) {
  return key(field, Wire::fixed32) + little_endian(std::bit_cast<uint32_t>(number));
}

std::string event(double time, int64_t step, uint32_t field, std::string_view content) {
  return event_record(
      key(1, Wire::fixed64) + little_endian(std::bit_cast<uint64_t>(time)) +
      number_field(2, static_cast<uint64_t>(step)) + bytes_field(field, content)
  );
}

std::string masked_crc(std::string_view bytes) {
  return little_endian(std::rotr(crc32c(bytes), 15) + 0xa282ead8U);
}

} // namespace

std::string event_record(std::string_view bytes) {
  const std::string length = little_endian(uint64_t{bytes.size()});
  return length + masked_crc(length) + std::string(bytes) + masked_crc(bytes);
}

std::string event_file_start(double time, int64_t first_step) {
  return event(time, 0, 3, "brain.Event:2") +
         event(time, first_step, 7, number_field(1, kSessionStarts));
}

std::string scalars_event(double time, int64_t step, std::span<const EventScalar> scalars) {
  std::string summary;
  for (const auto& [tag, value] : scalars) {
    summary += bytes_field(1, bytes_field(1, tag) + float_field(2, static_cast<float>(value)));
  }
  return event(time, step, 5, summary);
}

std::string text_event(double time, int64_t step, std::string_view tag, std::string_view text) {
  const std::string shape = bytes_field(2, number_field(1, 1)); // one dimension of size 1
  const std::string tensor =
      number_field(1, kStringType) + bytes_field(2, shape) + bytes_field(8, text);
  const std::string metadata = bytes_field(1, bytes_field(1, "text"));
  return event(
      time,
      step,
      5,
      bytes_field(
          1,
          bytes_field(1, std::string(tag) + "/text_summary") + bytes_field(8, tensor) +
              bytes_field(9, metadata)
      )
  );
}

} // namespace mh
