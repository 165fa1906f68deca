#include "plugins/data/indexed/blend.hpp"

#include <doctest/doctest.h>

#include <array>
#include <string>
#include <utility>

namespace blend_tests {

using mh::indexed::Blend;
using mh::indexed::shares_of;

TEST_CASE("a blend is Megatron's") {
  // megatron-core 0.16.1, helpers_cpp.build_blending_indices
  const auto digits = [](std::vector<double> weights) {
    const Blend blend(shares_of(std::move(weights)));
    std::string text;
    for (uint64_t i = 0; i < 64; ++i) {
      text += std::to_string(blend.at(i).corpus);
    }
    return text;
  };
  CHECK(digits({0.7, 0.3}) == "0100100100010010010001001001000100100100010010010001001001000100");
  CHECK(
      digits({0.5, 0.3, 0.2}) == "0120102010012010201001201020100120102010012010201001201020100120"
  );
  CHECK(digits({1, 1, 1, 1}) == "0123012301230123012301230123012301230123012301230123012301230123");
  CHECK(
      digits({3, 1, 4, 1, 5, 9, 2, 6}) ==
      "5742056754125730547524657052475057425675412573054752465705247505"
  );
  const Blend blend(shares_of({3, 1, 4, 1, 5, 9, 2, 6}));
  const auto is = [&](uint64_t index, size_t corpus, uint64_t sample) {
    const auto place = blend.at(index);
    return place.corpus == corpus && place.sample == sample;
  };
  CHECK(is(1023, 0, 99));
  CHECK(is(1024, 5, 297));
  CHECK(is(5000, 4, 806));
  CHECK(is(99999, 7, 19354));
  CHECK(is(1023, 0, 99));
}

TEST_CASE("each corpus of a blend gives its samples in order, in its share") {
  const Blend blend(shares_of({0.7, 0.3}));
  std::array<uint64_t, 2> counts{};
  for (uint64_t i = 0; i < 5000; ++i) {
    const auto place = blend.at(i);
    REQUIRE(place.sample == counts[place.corpus]++);
  }
  CHECK(counts == std::array<uint64_t, 2>{3500, 1500});
}

TEST_CASE("a corpus without a share gives nothing; one with a limit ends there") {
  const Blend blend({0.0, 0.5, 0.5});
  for (uint64_t i = 0; i < 2000; ++i) {
    CHECK(blend.at(i).corpus != 0);
  }
  // megatron-core 0.16.1, helpers_cpp.build_exhaustive_blending_indices of sizes 2, 7, 3
  const Blend exhaustive(shares_of({2, 7, 3}), {2, 7, 3});
  std::string text;
  for (uint64_t i = 0; i < 12; ++i) {
    text += std::to_string(exhaustive.at(i).corpus);
  }
  CHECK(text == "120112101121");
}

} // namespace blend_tests
