#pragma once
/// Protocol Buffers from files that are not trusted: the fields of one message, in the order of the
/// file. No schema; who reads knows the numbers.
///
/// ```cpp
/// mh::ProtobufReader reader(bytes, "spiece.model");
/// while (const auto field = reader.next()) {
///   if (field->number == 1) name = reader.bytes(*field);
/// }
/// ```

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace mh {

struct ProtobufField {
  uint32_t number = 0;
  uint8_t wire = 0;       ///< 0: varint, 1: 64 bits, 2: bytes, 5: 32 bits
  uint64_t value = 0;     ///< value of wire types 0, 1 and 5
  std::string_view bytes; ///< bytes of wire type 2; they lie in the text that was given
};

/// Source:  protobuf.dev/programming-guides/encoding
class ProtobufReader {
public:
  /// `where` is the file and the message, for errors.
  ProtobufReader(std::string_view message, std::string where);

  /// The next field; none at the end.
  ///
  /// Throws:  mh::Error (exit code 5) for a message that is cut short, a number that is no varint,
  ///          or groups, which no file has had since 2008
  [[nodiscard]] std::optional<ProtobufField> next();

  /// A field as what it should be. They throw mh::Error (exit code 5) for another wire type.
  [[nodiscard]] std::string_view bytes(const ProtobufField& field) const;
  [[nodiscard]] uint64_t integer(const ProtobufField& field) const;
  [[nodiscard]] float real(const ProtobufField& field) const;

private:
  [[noreturn]] void refuse(const std::string& why) const;
  void expect(const ProtobufField& field, uint8_t wire) const;
  uint64_t varint();
  uint64_t fixed(size_t bytes);

  std::string_view rest_;
  std::string where_;
};

} // namespace mh
