// The commit protocol against a crash after every operation, and against power loss that drops any
// of the operations which no sync covers.

#include "memory_storage.hpp"
#include "saves.hpp"

#include <doctest/doctest.h>

#include <utility>

using mh::StepFolder;
using mh::test::after_kill;
using mh::test::after_power_loss;
using mh::test::Disk;
using mh::test::MemoryStorage;
using mh::test::Operation;
using mh::test::read_save;
using mh::test::save;
using mh::test::verify_in;

namespace {

void silent(const std::string& /*warning*/) {}

/// A run's saves: new steps, retention, and one step saved again. `committed` has (operations so
/// far, version) at the start and after each commit.
struct Run {
  MemoryStorage disk;
  std::vector<std::pair<size_t, int>> committed;

  Run() {
    StepFolder folder(disk, "/runs/a", silent, "run");
    committed.emplace_back(0, 0);
    folder.recover();
    int version = 0;
    for (const int64_t step : {10, 20, 30, 30, 40, 30}) {
      save(disk, folder, step, ++version);
      committed.emplace_back(disk.log().size(), version);
      folder.keep_last(2, verify_in(disk));
    }
  }

  /// Versions that the newest checkpoint may have after the first `count` operations.
  std::pair<int, int> allowed(size_t count) const {
    size_t last = 0;
    while (last + 1 < committed.size() && committed[last + 1].first <= count) {
      ++last;
    }
    return {
        committed[last].second,
        last + 1 < committed.size() ? committed[last + 1].second : committed[last].second};
  }
};

/// The version that a restart finds; 0 if none.
int restart(MemoryStorage& disk) {
  StepFolder folder(disk, "/runs/a", silent, "again");
  folder.recover();
  const auto step = folder.newest(verify_in(disk));
  return step ? read_save(disk, folder.path(*step)) : 0;
}

// Saving step 30 for the last time leaves 40 as the newest step: version 5.
int seen_version(int version) {
  return version == 6 ? 5 : version;
}

void check(const Run& run, size_t count, int found) {
  const auto [before, after] = run.allowed(count);
  const bool fine = found == seen_version(before) || found == seen_version(after);
  CAPTURE(count);
  CAPTURE(found);
  CAPTURE(before);
  CHECK(fine);
}

} // namespace

TEST_CASE("killed after any operation: the previous or the new checkpoint, and nothing left over") {
  const Run run;
  const auto& log = run.disk.log();
  CHECK(log.size() > 100);
  for (size_t count = 0; count <= log.size(); ++count) {
    MemoryStorage disk(after_kill(log, count));
    check(run, count, restart(disk));
    for (const std::string& name : disk.list("/runs/a")) {
      CAPTURE(name);
      CHECK((name == "LATEST" || name == "LATEST.tmp" || name.size() == 17));
    }
  }
}

TEST_CASE("power lost after any operation: the previous or the new checkpoint, whole") {
  const Run run;
  const auto& log = run.disk.log();
  std::mt19937 random(11);
  for (size_t count = 0; count <= log.size(); ++count) {
    for (int round = 0; round < 60; ++round) {
      MemoryStorage disk(after_power_loss(log, count, random));
      check(run, count, restart(disk));
    }
  }
}

TEST_CASE("crashes of the restart itself") {
  const Run run;
  const auto& log = run.disk.log();
  std::mt19937 random(12);
  for (size_t count = 0; count <= log.size(); ++count) {
    const Disk first = after_power_loss(log, count, random);
    MemoryStorage disk(first);
    const int found = restart(disk);
    for (size_t again = 0; again <= disk.log().size(); ++again) {
      MemoryStorage second(after_power_loss(disk.log(), again, random, first));
      CHECK(restart(second) == found);
    }
  }
}

TEST_CASE("without its syncs the protocol would be caught") {
  const Run run;
  std::vector<Operation> log;
  for (const Operation& operation : run.disk.log()) {
    if (operation.kind != Operation::Kind::sync) {
      log.push_back(operation);
    }
  }
  std::mt19937 random(13);
  int lost = 0;
  for (int round = 0; round < 200; ++round) {
    MemoryStorage disk(after_power_loss(log, log.size(), random));
    try {
      lost += restart(disk) != 5;
    } catch (const mh::Error&) {
      ++lost;
    }
  }
  CHECK(lost > 100);
}
