#pragma once
/// Shuffled orders without state or memory: for corpora, whose samples are pure functions of an
/// index.
///
/// ```cpp
/// uint64_t place = mh::shuffled(sample % size, size, mh::mix(seed + sample / size));
/// ```

#include <bit>
#include <cstdint>
#include <string_view>

namespace mh {

/// A bijection of 64-bit words that spreads every bit over all others.
///
/// Source:  Steele et al., "Fast splittable pseudorandom number generators" (OOPSLA 2014),
/// SplitMix64
[[nodiscard]] constexpr uint64_t mix(uint64_t word) {
  word += 0x9e3779b97f4a7c15;
  word = (word ^ (word >> 30)) * 0xbf58476d1ce4e5b9;
  word = (word ^ (word >> 27)) * 0x94d049bb133111eb;
  return word ^ (word >> 31);
}

/// A hash of a text, the same on every machine.
///
/// Source:  FNV-1a, mixed
[[nodiscard]] constexpr uint64_t hash_text(std::string_view text) {
  uint64_t hash = 0xcbf29ce484222325;
  for (char c : text) {
    hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  }
  return mix(hash);
}

/// The position of element `index` of `size` elements in the order of `key`: for each key a
/// bijection of 0 ... size - 1.
///
/// A Feistel network over the next even number of bits; results past the end are fed in again.
///
/// Units:   index below size, size at least 1 and at most 2^62
/// Source:  Black and Rogaway, "Ciphers with arbitrary finite domains" (CT-RSA 2002), cycle walking
[[nodiscard]] constexpr uint64_t shuffled(uint64_t index, uint64_t size, uint64_t key) {
  constexpr int kRounds = 6;
  const int half = std::bit_width(size - 1) / 2 + 1;
  const uint64_t mask = (uint64_t{1} << half) - 1;
  do {
    uint64_t left = index >> half;
    uint64_t right = index & mask;
    for (int round = 0; round < kRounds; ++round) {
      const uint64_t turned = left ^ (mix(mix(key + static_cast<uint64_t>(round)) ^ right) & mask);
      left = right;
      right = turned;
    }
    index = (left << half) | right;
  } while (index >= size);
  return index;
}

} // namespace mh
