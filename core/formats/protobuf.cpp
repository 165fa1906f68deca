#include "core/formats/protobuf.hpp"

#include "megahost/error.hpp"

#include <bit>

namespace mh {

namespace {

constexpr uint8_t kVarint = 0, kEight = 1, kBytes = 2, kFour = 5;

} // namespace

ProtobufReader::ProtobufReader(std::string_view message, std::string where)
    : rest_(message)
    , where_(std::move(where)) {}

void ProtobufReader::refuse(const std::string& why) const {
  throw Error(
      where_ + ": " + why,
      "the file is damaged, cut short, or of another kind: get it anew",
      exit_code::data
  );
}

std::optional<ProtobufField> ProtobufReader::next() {
  if (rest_.empty()) {
    return std::nullopt;
  }
  const uint64_t key = varint();
  if (key >> 3 == 0 || key >> 3 > UINT32_MAX) {
    refuse("a field has the number " + std::to_string(key >> 3));
  }
  ProtobufField field{static_cast<uint32_t>(key >> 3), static_cast<uint8_t>(key & 7), 0, {}};
  switch (field.wire) {
  case kVarint:
    field.value = varint();
    break;
  case kEight:
    field.value = fixed(8);
    break;
  case kFour:
    field.value = fixed(4);
    break;
  case kBytes: {
    const uint64_t size = varint();
    if (size > rest_.size()) {
      refuse(
          "field " + std::to_string(field.number) + " has " + std::to_string(size) +
          " bytes, but only " + std::to_string(rest_.size()) + " follow"
      );
    }
    field.bytes = rest_.substr(0, size);
    rest_.remove_prefix(size);
    break;
  }
  default:
    refuse(
        "field " + std::to_string(field.number) + " has the wire type " + std::to_string(field.wire)
    );
  }
  return field;
}

std::string_view ProtobufReader::bytes(const ProtobufField& field) const {
  expect(field, kBytes);
  return field.bytes;
}

uint64_t ProtobufReader::integer(const ProtobufField& field) const {
  expect(field, kVarint);
  return field.value;
}

float ProtobufReader::real(const ProtobufField& field) const {
  expect(field, kFour);
  return std::bit_cast<float>(static_cast<uint32_t>(field.value));
}

void ProtobufReader::expect(const ProtobufField& field, uint8_t wire) const {
  if (field.wire != wire) {
    refuse(
        "field " + std::to_string(field.number) + " has the wire type " +
        std::to_string(field.wire) + ", expected " + std::to_string(wire)
    );
  }
}

uint64_t ProtobufReader::varint() {
  uint64_t value = 0;
  for (unsigned shift = 0; shift < 64 && !rest_.empty(); shift += 7) {
    const auto byte = static_cast<unsigned char>(rest_[0]);
    rest_.remove_prefix(1);
    value |= static_cast<uint64_t>(byte & 0x7F) << shift;
    if (byte < 0x80) {
      return value;
    }
  }
  refuse(rest_.empty() ? "it ends within a number" : "a number of more than 64 bits");
}

uint64_t ProtobufReader::fixed(size_t bytes) {
  if (rest_.size() < bytes) {
    refuse("it ends within a number");
  }
  uint64_t value = 0;
  for (size_t i = 0; i < bytes; ++i) {
    value |= static_cast<uint64_t>(static_cast<unsigned char>(rest_[i])) << 8 * i;
  }
  rest_.remove_prefix(bytes);
  return value;
}

} // namespace mh
