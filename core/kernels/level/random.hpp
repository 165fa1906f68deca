#pragma once
/// `mh::philox` for many counters at a time: dropout's masks.

#include <cstdint>

namespace mh::kernels::MH_LEVEL {

/// Words [lane] of the counters (low[i], middle[i], sample).
template <int64_t N>
inline void philox(
    uint64_t key,
    const uint32_t* low,
    const uint32_t* middle,
    uint64_t sample,
    uint32_t (&words)[4][N]
) {
  const auto third = static_cast<uint32_t>(sample);
  const auto fourth = static_cast<uint32_t>(sample >> 32);
#pragma omp simd
  for (int64_t i = 0; i < N; ++i) {
    uint32_t a = low[i];
    uint32_t b = middle[i];
    uint32_t c = third;
    uint32_t d = fourth;
    auto k0 = static_cast<uint32_t>(key);
    auto k1 = static_cast<uint32_t>(key >> 32);
    for (int round = 0; round < 10; ++round) {
      const uint64_t p0 = uint64_t{0xD2511F53} * a;
      const uint64_t p1 = uint64_t{0xCD9E8D57} * c;
      a = static_cast<uint32_t>(p1 >> 32) ^ b ^ k0;
      b = static_cast<uint32_t>(p1);
      c = static_cast<uint32_t>(p0 >> 32) ^ d ^ k1;
      d = static_cast<uint32_t>(p0);
      k0 += 0x9E3779B9;
      k1 += 0xBB67AE85;
    }
    words[0][i] = a;
    words[1][i] = b;
    words[2][i] = c;
    words[3][i] = d;
  }
}

/// The words of 64 features from `feature` on, of one token and sample.
inline void
feature_words(uint64_t key, int64_t feature, uint32_t token, uint64_t sample, uint32_t (&row)[64]) {
  constexpr int64_t kLanes = 16;
  const int64_t skip = feature % 4;
  uint32_t low[2 * kLanes];
  uint32_t middle[2 * kLanes];
  for (int64_t i = 0; i < 2 * kLanes; ++i) {
    low[i] = static_cast<uint32_t>(feature / 4 + i);
    middle[i] = token;
  }
  uint32_t words[4][kLanes];
  philox<kLanes>(key, low, middle, sample, words);
  if (skip == 0) {
    for (int64_t i = 0; i < kLanes; ++i) {
      for (int64_t lane = 0; lane < 4; ++lane) {
        row[4 * i + lane] = words[lane][i];
      }
    }
    return;
  }
  uint32_t more[4][kLanes];
  philox<kLanes>(key, low + kLanes, middle, sample, more);
  for (int64_t j = 0; j < 64; ++j) {
    const int64_t at = j + skip;
    row[j] = at < 64 ? words[at % 4][at / 4] : more[at % 4][at / 4 - kLanes];
  }
}

} // namespace mh::kernels::MH_LEVEL
