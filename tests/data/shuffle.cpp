#include <megahost/shuffle.hpp>

#include <doctest/doctest.h>

#include <cmath>
#include <vector>

namespace shuffle_tests {

namespace {

std::vector<uint64_t> order(uint64_t size, uint64_t key) {
  std::vector<uint64_t> places(size);
  for (uint64_t i = 0; i < size; ++i) {
    places[i] = mh::shuffled(i, size, key);
  }
  return places;
}

} // namespace

TEST_CASE("shuffled is a bijection for every size and key") {
  for (uint64_t size = 1; size <= 1000; ++size) {
    for (uint64_t key : {uint64_t{0}, uint64_t{1234}, mh::mix(size)}) {
      std::vector<bool> seen(size);
      uint64_t distinct = 0;
      for (uint64_t place : order(size, key)) {
        REQUIRE(place < size);
        distinct += seen[place] ? 0 : 1;
        seen[place] = true;
      }
      REQUIRE(distinct == size);
    }
  }
}

TEST_CASE("keys give other orders, the same key the same") {
  CHECK(order(500, 7) == order(500, 7));
  CHECK(order(500, 7) != order(500, 8));
}

TEST_CASE("neighbours land far apart, and each place is as likely as any other") {
  constexpr uint64_t kSize = 1000;
  double distance = 0;
  double first = 0;
  constexpr int kKeys = 200;
  for (uint64_t key = 0; key < kKeys; ++key) {
    const auto places = order(kSize, key);
    first += double(places[0]);
    for (size_t i = 1; i < kSize; ++i) {
      distance += std::abs(double(places[i]) - double(places[i - 1]));
    }
  }
  // The mean distance of two uniform places is size / 3; the mean place is size / 2.
  CHECK(distance / (kKeys * (kSize - 1)) == doctest::Approx(kSize / 3.0).epsilon(0.02));
  CHECK(first / kKeys == doctest::Approx(kSize / 2.0).epsilon(0.15));
}

TEST_CASE("large sizes") {
  constexpr uint64_t kSize = (uint64_t{1} << 62) - 3;
  CHECK(mh::shuffled(0, kSize, 1) < kSize);
  CHECK(mh::shuffled(kSize - 1, kSize, 1) < kSize);
  CHECK(mh::shuffled(0, kSize, 1) != mh::shuffled(1, kSize, 1));
}

TEST_CASE("hashes are the same on every machine") {
  // FNV-1a of "" and "a" are 0xcbf29ce484222325 and 0xaf63dc4c8601ec8c (its authors' test vectors).
  CHECK(mh::hash_text("") == mh::mix(0xcbf29ce484222325));
  CHECK(mh::hash_text("a") == mh::mix(0xaf63dc4c8601ec8c));
  // SplitMix64 from state 0 starts with this word.
  CHECK(mh::mix(0) == 0xe220a8397b1dcdaf);
}

} // namespace shuffle_tests
