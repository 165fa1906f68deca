// The sentences about ranks that are unlike the others.

#include "core/bench/preflight.hpp"

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

namespace preflight_tests {

namespace {

mh::Preflight healthy(size_t ranks) {
  mh::Preflight found{.device = "cpu", .ranks = {}, .all_reduce = 1e9};
  for (size_t i = 0; i < ranks; ++i) {
    mh::CheckedRank rank{
        .host = "n" + std::to_string(i / 2),
        .build = "1",
        .gemm = 100e9,
        .copy = 10e9,
        .disk = 1e9,
        .links = std::vector<double>(ranks, 2e9)};
    rank.links[i] = 0;
    found.ranks.push_back(rank);
  }
  return found;
}

std::string only(const mh::Preflight& found, const std::optional<mh::Machine>& expected = {}) {
  const auto faults = mh::judge_ranks(found, expected);
  REQUIRE(faults.size() == 1);
  return faults.front();
}

TEST_CASE("ranks that are alike") {
  for (const size_t n : {1, 2, 3, 8}) {
    auto found = healthy(n);
    found.ranks.back().gemm *= 0.8;
    found.ranks.front().clock = 0.2;
    CHECK(mh::judge_ranks(found).empty());
  }
  CHECK(mh::preflight_text(healthy(2), {}).find("The ranks are alike.") != std::string::npos);
}

TEST_CASE("each fault is named with rank and host") {
  auto found = healthy(4);
  found.ranks[2].gemm = 40e9;
  CHECK(
      only(found) ==
      "rank 2 on n1 is slow: GEMMs reach 40.0 GFLOP/s, those of the others 100.0 GFLOP/s"
  );
  found = healthy(2); // the slower of two
  found.ranks[1].copy = 4e9;
  CHECK(
      only(found) == "rank 1 on n0 is slow: copies reach 4.00 GB/s, those of the others 10.00 GB/s"
  );
  found = healthy(4);
  found.ranks[3].clock = -90.25;
  CHECK(
      only(found) ==
      "rank 3 on n1 has a clock 90.2 s behind rank 0's: is a time daemon running there?"
  );
  found = healthy(4);
  found.ranks[0].build = "2";
  CHECK(only(found) == "rank 0 on n0 runs megahost 2, the others 1");
  found = healthy(4);
  found.ranks[1].disk = 0;
  found.ranks[1].disk_failed = "no space";
  CHECK(only(found) == "rank 1 on n0 cannot write: no space");
}

TEST_CASE("a slow link, and a rank all of whose links are slow") {
  auto found = healthy(4);
  found.ranks[0].links[3] = found.ranks[3].links[0] = 0.5e9;
  CHECK(
      only(found) ==
      "the link between rank 0 on n0 and rank 3 on n1 is slow: 0.50 GB/s, others 2.00 GB/s"
  );
  found = healthy(4);
  for (size_t i = 0; i < 3; ++i) {
    found.ranks[i].links[3] = found.ranks[3].links[i] = 0.5e9;
  }
  CHECK(
      only(found) == "rank 3 on n1 is slow: links reach 0.50 GB/s, those of the others 2.00 GB/s"
  );
}

TEST_CASE("all of them slower than plans count on") {
  mh::Machine machine;
  machine.hardware.name = "m";
  machine.hardware.fp32_tflops = 1;
  machine.hardware.memory_tb_s = 0.01;
  machine.hardware.network_gb_s = 2;
  auto found = healthy(4);
  CHECK(
      only(found, machine) ==
      "ranks 0, 1, 2 and 3 reach 100.0 GFLOP/s at least in GEMMs, and plans for m count on 780.0 GFLOP/s"
  );
  machine.hardware.fp32_tflops = 0.15;
  CHECK(mh::judge_ranks(found, machine).empty());
}

TEST_CASE("for programs") {
  const auto found = healthy(3);
  const auto json = nlohmann::json::parse(mh::preflight_json(found, {"one"}));
  CHECK(json["ranks"].size() == 3);
  CHECK(json["ranks"][1]["link_bytes_per_s"][2] == 2e9);
  CHECK(json["faults"][0] == "one");
}

} // namespace

} // namespace preflight_tests
