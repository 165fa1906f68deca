#include "core/text/byte_alphabet.hpp"

#include "core/text/utf8.hpp"

#include <algorithm>
#include <array>

namespace mh::text {

namespace {

struct Alphabet {
  static constexpr int kNoByte = -1;

  std::array<uint16_t, 256> letters{};
  std::array<int, 512> bytes{};

  Alphabet() {
    bytes.fill(kNoByte);
    uint16_t next = 256;
    for (uint16_t byte = 0; byte < 256; ++byte) {
      const bool itself = (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte != 0xAD);
      letters[byte] = itself ? byte : next++;
      bytes[letters[byte]] = byte;
    }
  }
};

const Alphabet& alphabet() {
  static const Alphabet letters;
  return letters;
}

/// Calls `take` with the byte that each character stands for, or Alphabet::kNoByte.
template <class Take>
void for_each_byte(std::string_view token, Take take) {
  for (size_t at = 0; at < token.size();) {
    const size_t length = std::max<size_t>(1, character_length(token.substr(at, 4)));
    const char32_t code =
        character_length(token.substr(at, 4)) == 0 ? 512 : decode_at(token.data() + at).code;
    take(code < alphabet().bytes.size() ? alphabet().bytes[code] : Alphabet::kNoByte);
    at += length;
  }
}

} // namespace

std::string token_bytes(std::string_view token) {
  std::string bytes;
  bool all = true;
  for_each_byte(token, [&](int byte) {
    all &= byte != Alphabet::kNoByte;
    bytes += static_cast<char>(byte);
  });
  return all ? bytes : std::string(token);
}

bool is_byte_token(std::string_view token) {
  bool all = true;
  for_each_byte(token, [&](int byte) { all &= byte != Alphabet::kNoByte; });
  return all;
}

std::string byte_letters(std::string_view bytes) {
  std::string letters;
  letters.reserve(2 * bytes.size());
  for (const char byte : bytes) {
    append_utf8(alphabet().letters[static_cast<unsigned char>(byte)], letters);
  }
  return letters;
}

} // namespace mh::text
