// The table of machines: every row is whole, and every number of it says where it comes from.

#include "core/mesh/layout.hpp"
#include "core/plan/plan.hpp"
#include "core/recipe/load.hpp"

#include <doctest/doctest.h>

#include <cstdlib>
#include <filesystem>
#include <string>

namespace hardware_tests {

using namespace mh;

namespace {

ReadOptions recipes() {
  ReadOptions options;
  options.roots = {std::filesystem::path(std::getenv("MEGAHOST_SOURCE")) / "recipes"};
  return options;
}

} // namespace

TEST_CASE("every number of hardware.toml has a source, in its row or of its own") {
  const auto file = recipes().roots.front() / "presets/hardware.toml";
  const Value all = read_toml(read_source(file, "hardware.toml"));
  for (const auto& row : all.as_table()) {
    CAPTURE(row.key);
    const Value* source = row.value.find("source");
    REQUIRE(source != nullptr);
    CHECK_FALSE(source->as_string().empty());
    const Value* sources = row.value.find("sources");
    if (sources == nullptr) {
      continue;
    }
    for (const auto& one : sources->as_table()) {
      CAPTURE(one.key);
      CHECK_FALSE(one.value.as_string().empty());
      const Value* number = row.value.find(one.key); // this row's own: inherited ones have theirs
      REQUIRE(number != nullptr);
      CHECK(number->is_number());
    }
  }
}

TEST_CASE("every machine has what a plan needs") {
  const auto names = hardware_names(recipes());
  CHECK(names.size() > 30);
  for (const auto& name : names) {
    CAPTURE(name);
    const auto machine = find_machine(name, recipes());
    const auto& hardware = machine.hardware;
    CHECK(hardware.name == name);
    CHECK(hardware.peak(at::kBFloat16) > hardware.peak(at::kFloat));
    CHECK(hardware.memory_gib > 10 * hardware.reserved_gib);
    CHECK(hardware.reserved_gib > 0);
    CHECK(hardware.memory_tb_s > 0);
    CHECK(hardware.link_gb_s > hardware.network_gb_s);
    CHECK(hardware.network_gb_s > 1);
    CHECK(machine.calibration.product > 0.4);
  }
}

TEST_CASE("what is no tensor's grows with process groups and with activations") {
  const auto h100 = find_machine("h100", recipes()).hardware;
  constexpr int64_t kGiB = int64_t{1} << 30;
  const int64_t alone = h100.reserved(/*groups=*/0, /*activations=*/0);
  CHECK(alone == static_cast<int64_t>(h100.reserved_gib * kGiB));
  CHECK(alone > kGiB / 2);
  CHECK(h100.reserved(4, 0) - alone == doctest::Approx(4 * h100.group_gib * kGiB));
  CHECK(h100.reserved(0, 10 * kGiB) - alone == doctest::Approx(10 * h100.fragmentation * kGiB));
  CHECK(process_groups({}) == 0);
  CHECK(process_groups({.dp = 8}) == 2); // all ranks, and the data ranks
  CHECK(process_groups({.pp = 2, .dp = 2, .cp = 2, .tp = 2}) == 5);
  CHECK(process_groups({.pp = 2, .dp = 4, .tp = 2, .ep = 4}) == 6); // and ep, edp
}

TEST_CASE("a memory is tight above 95%") {
  CHECK((fit_of(95, 100) == Fit::fits));
  CHECK((fit_of(96, 100) == Fit::tight));
  CHECK((fit_of(100, 100) == Fit::tight));
  CHECK((fit_of(101, 100) == Fit::too_much));
  CHECK((fit_of(101, 0) == Fit::unknown));
}

TEST_CASE("instances have the devices of AWS's EFA page") {
  struct Row {
    const char* name;
    int64_t gpus, efa, gbit_s;
    const char* rdma;
  };

  for (const Row& row : {
           Row{"g5.xlarge", 1, 0, 10, "none"},         {"g5.2xlarge", 1, 0, 10, "none"},
           {"g5.4xlarge", 1, 0, 25, "none"},           {"g5.8xlarge", 1, 1, 25, "none"},
           {"g5.12xlarge", 4, 1, 40, "none"},          {"g5.16xlarge", 1, 1, 25, "none"},
           {"g5.24xlarge", 4, 1, 50, "none"},          {"g5.48xlarge", 8, 1, 100, "none"},
           {"p4d.24xlarge", 8, 4, 400, "read"},        {"p4de.24xlarge", 8, 4, 400, "read"},
           {"p5.48xlarge", 8, 32, 3200, "write"},      {"p5e.48xlarge", 8, 32, 3200, "write"},
           {"p5en.48xlarge", 8, 16, 3200, "write"},    {"p6-b200.48xlarge", 8, 8, 3200, "write"},
           {"p6-b300.48xlarge", 8, 16, 6400, "write"}, {"p6e-gb200.36xlarge", 4, 4, 1600, "write"},
           {"trn1.32xlarge", 16, 8, 800, "write"},     {"trn1n.32xlarge", 16, 16, 1600, "write"},
           {"trn2.48xlarge", 16, 16, 3200, "write"},   {"trn2u.48xlarge", 16, 16, 3200, "write"},
       }) {
    CAPTURE(row.name);
    const Hardware hardware = find_machine(row.name, recipes()).hardware;
    const NodeType& node = hardware.node;
    CHECK(node.accelerators == row.gpus);
    CHECK(node.efa == row.efa);
    CHECK(node.gbit_s == row.gbit_s);
    CHECK(node.rdma == row.rdma);
    CHECK((node.efa_group == "p4") == std::string(row.name).starts_with("p4"));
    // A rank's share of the node's network is what plans reckon with, to rounding.
    const auto ranks = static_cast<double>(node.ranks_here());
    CHECK(8 * hardware.network_gb_s * ranks == doctest::Approx(row.gbit_s).epsilon(0.04));
  }
  CHECK_FALSE(find_machine("h100", recipes()).hardware.node.known());
}

} // namespace hardware_tests
