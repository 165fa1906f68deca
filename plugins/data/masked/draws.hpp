#pragma once
/// Random numbers of one sample: the same wherever and whenever it is read.

#include <megahost/corpus.hpp>
#include <megahost/shuffle.hpp>

#include <cstdint>
#include <vector>

namespace mh::masked {

class Draws {
public:
  explicit Draws(uint64_t key)
      : key_(mix(key)) {}

  uint64_t next() { return mix(key_ ^ mix(count_++)); }

  /// In [0, 1).
  double uniform() { return static_cast<double>(next() >> 11) * 0x1p-53; }

  /// Below `end`, which is at least 1.
  uint64_t below(uint64_t end) {
    return static_cast<uint64_t>(uniform() * static_cast<double>(end));
  }

  bool happens(double probability) { return uniform() < probability; }

  /// `count` different numbers below `end`, in random order.
  std::vector<uint64_t> choose(uint64_t count, uint64_t end) {
    const uint64_t key = next();
    std::vector<uint64_t> chosen;
    for (uint64_t i = 0; i < count; ++i) {
      chosen.push_back(shuffled(i, end, key));
    }
    return chosen;
  }

private:
  uint64_t key_;
  uint64_t count_ = 0;
};

/// The passage of sample `index`, and the random draws for it.
struct Turn {
  uint64_t number; ///< number of the passage
  Draws draws;
};

/// Every epoch reads all `count` passages in an order of its own; that of train depends on the
/// seed.
inline Turn turn_of(Split split, uint64_t seed, uint64_t index, uint64_t count) {
  const uint64_t key = mix(split == Split::train ? seed : static_cast<uint64_t>(split));
  return {shuffled(index % count, count, key ^ mix(index / count)), Draws(key ^ mix(mix(index)))};
}

} // namespace mh::masked
