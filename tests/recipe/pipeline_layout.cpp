// Layouts of a pipeline: written out, even, and balanced by cost.

#include "megahost/pipeline_layout.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <functional>
#include <numeric>

namespace pipeline_layout_tests {

using namespace mh;

namespace {

std::string balanced(const std::vector<double>& layers, double head, int64_t chunks) {
  std::vector<double> costs{0};
  costs.insert(costs.end(), layers.begin(), layers.end());
  costs.push_back(head);
  return layout_text(balanced_layout(costs, chunks));
}

double largest(const std::vector<LayoutChunk>& layout, const std::vector<double>& costs) {
  auto block = costs.begin() + 1;
  double most = 0;
  for (const auto& chunk : layout) {
    double sum = std::accumulate(block, block + chunk.layers, 0.0);
    block += chunk.layers;
    sum += chunk.embedding ? costs.front() : 0;
    sum += chunk.head ? costs.back() : 0;
    most = std::max(most, sum);
  }
  return most;
}

/// The least maximum over all ways to cut.
double least_maximum(const std::vector<double>& costs, int64_t chunks) {
  const auto layers = static_cast<int64_t>(costs.size()) - 2;
  double least = 1e300;
  std::vector<LayoutChunk> layout(static_cast<size_t>(chunks));
  layout.front().embedding = true;
  layout.back().head = true;
  const std::function<void(size_t, int64_t)> place = [&](size_t chunk, int64_t left) {
    if (chunk + 1 == layout.size()) {
      if (left > 0 || chunk > 0) {
        layout[chunk].layers = left;
        least = std::min(least, largest(layout, costs));
      }
      return;
    }
    for (int64_t here = 1; here <= left; ++here) {
      layout[chunk].layers = here;
      place(chunk + 1, left - here);
    }
  };
  place(0, layers);
  return least;
}

} // namespace

TEST_CASE("a layout that is written out is read and written the same") {
  for (const char* text :
       {"embed+3|4|4|3+head", "embed+2+head", "embed|4|4|head", "embed+1|1+head"}) {
    const auto chunks = parse_layout(text);
    REQUIRE(chunks);
    CHECK(layout_text(*chunks) == text);
  }
  CHECK(
      *parse_layout("embed+3|head") == std::vector<LayoutChunk>{{true, 3, false}, {false, 0, true}}
  );
}

TEST_CASE("what is no layout is refused") {
  for (const char* text :
       {"",
        "|",
        "embed",
        "embed+3",
        "3+head",
        "embed+3||head",
        "embed+3|0|head",
        "embed+3|-1|head",
        "3+embed|head",
        "embed+3|head+1",
        "embed+3|embed+head",
        "embed+3|head|2+head",
        "embed+3+|head",
        "embed + 3|head",
        "embed+3|99999999999999999999|head",
        "embed+1.5|head",
        "balanced",
        "embed+embed|head"}) {
    CAPTURE(text);
    CHECK(!parse_layout(text));
  }
}

TEST_CASE("an even layout has as many layers in each chunk") {
  CHECK(layout_text(even_layout(8, 4)) == "embed+2|2|2|2+head");
  CHECK(layout_text(even_layout(3, 1)) == "embed+3+head");
}

TEST_CASE("a balanced layout counts the head, and spreads what is left evenly") {
  CHECK(balanced({1, 1, 1, 1}, 0, 2) == "embed+2|2+head");
  CHECK(balanced({1, 1, 1, 1}, 2, 2) == "embed+3|1+head");
  CHECK(balanced({1, 1, 1, 1}, 0, 1) == "embed+4+head");
  CHECK(balanced({1, 1, 1, 1}, 4, 2) == "embed+4|head");
  CHECK(balanced(std::vector<double>(12, 14), 77, 4) == "embed+4|4|4|head"); // GPT-2 124M, nearly
  CHECK(balanced(std::vector<double>(7, 1), 0, 3) == "embed+2|2|3+head");
  CHECK(balanced({5, 1, 1, 1}, 0, 2) == "embed+1|3+head");
}

TEST_CASE("no cut has a smaller maximum than the balanced one") {
  uint32_t state = 1;
  for (int round = 0; round < 300; ++round) {
    const auto random = [&](uint32_t below) {
      state = state * 1664525 + 1013904223;
      return (state >> 8) % below;
    };
    std::vector<double> costs{static_cast<double>(random(4))};
    const auto layers = static_cast<int64_t>(1 + random(8));
    for (int64_t i = 0; i <= layers; ++i) {
      costs.push_back(1 + random(9));
    }
    const int64_t chunks = 1 + static_cast<int64_t>(random(static_cast<uint32_t>(layers)));
    const auto layout = balanced_layout(costs, chunks);
    int64_t found = 0;
    for (const auto& chunk : layout) {
      found += chunk.layers;
    }
    CHECK(found == layers);
    CHECK(largest(layout, costs) == doctest::Approx(least_maximum(costs, chunks)));
  }
}

} // namespace pipeline_layout_tests
