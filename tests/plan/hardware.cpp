// The table of machines: every row is whole, and every number of it says where it comes from.

#include "core/mesh/layout.hpp"
#include "core/plan/plan.hpp"
#include "core/recipe/load.hpp"

#include <doctest/doctest.h>

#include <cstdlib>
#include <filesystem>
#include <string>

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
      const Value* number = row.value.find(one.key); // of this row: inherited ones have theirs
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
