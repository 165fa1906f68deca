#pragma once
/// Texts as values of a c10d::Store.

#include <cstdint>
#include <string>
#include <vector>

namespace mh {

[[nodiscard]] inline std::string text_of(const std::vector<uint8_t>& bytes) {
  return {bytes.begin(), bytes.end()};
}

[[nodiscard]] inline std::vector<uint8_t> bytes_of(const std::string& text) {
  return {text.begin(), text.end()};
}

} // namespace mh
