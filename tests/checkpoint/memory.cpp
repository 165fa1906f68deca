// The memory that loading and saving take is what is said before, within a tenth of it.

#include "core/checkpoint/background.hpp"
#include "core/checkpoint/hf.hpp"
#include "core/checkpoint/hf_export.hpp"
#include "core/checkpoint/mapped_slices.hpp"
#include "core/foreign/dcp.hpp"
#include "core/storage/temporary_folder.hpp"
#include "samples.hpp"

#include <ATen/ops/ones.h>

#include <doctest/doctest.h>
#include <malloc.h>

#include <cstdio>
#include <fstream>
#include <functional>
#include <string>

namespace memory_tests {

using namespace mh::test;
using mh::Path;
using mh::Slice;

namespace {

/// A line's bytes in /proc/self/status, such as "VmHWM:  12345 kB".
double status_bytes(const std::string& name) {
  std::ifstream lines("/proc/self/status");
  for (std::string word; lines >> word;) {
    double value = 0;
    if (word == name + ":" && lines >> value) {
      return value * 1024;
    }
  }
  return 0;
}

/// Bytes by which an action's peak is above what the process has before.
double peak_of(const std::function<void()>& action) {
  std::ofstream("/proc/self/clear_refs") << "5"; // the peak is counted anew
  const double before = status_bytes("VmRSS");
  action();
  return status_bytes("VmHWM") - before;
}

void check_said(double taken, uint64_t said) {
  const double share = taken / static_cast<double>(said);
  CAPTURE(taken);
  CAPTURE(said);
  if (said == 0) { // all is read into its place
    CHECK(taken < 1e6);
    return;
  }
  CHECK(share > 0.9);
  CHECK(share < 1.1);
}

/// Tensors of 8, 64 and 24 MiB, of ones: their pages are there.
std::vector<Slice> large() {
  std::vector<Slice> slices;
  for (const int64_t rows : {1024, 8192, 3072}) {
    slices.push_back(whole("t" + std::to_string(rows), at::ones({rows, 2048})));
  }
  return slices;
}

struct OnDisk {
  mh::TemporaryFolder place{"megahost-memory"};
  mh::Storage& disk = mh::local_storage();
  std::vector<Slice> slices = large();

  OnDisk() { (void)mallopt(M_MMAP_THRESHOLD, 64 << 10); } // what is freed is the system's at once

  void check(mh::CheckpointReader& saved, const mh::MappedSlices& into) {
    const uint64_t said = mh::bytes_to_read(saved, into, mh::largest_boxes(saved));
    check_said(peak_of([&] { read_mapped(saved, into); }), said);
  }
};

} // namespace

TEST_CASE_FIXTURE(OnDisk, "a run's checkpoint is loaded block by block") {
  mh::StepFolder folder(disk, place.path(), mh::kManifestName, [](const std::string&) {});
  const auto save = [&] { mh::write_checkpoint(disk, folder, 1, {{"samples", 8}}, slices); };
  CHECK(peak_of(save) < 8e6); // the file's buffer: tensors in host memory are written from there
  mh::Checkpoint saved(disk, folder.path(1));
  check(saved, {.slices = slices});
  std::vector<Slice> halves; // parts of another layout, which read whole blocks for their checksums
  for (const Slice& slice : slices) {
    halves.push_back(part_of(slice, 0, 1, 2));
  }
  check(saved, {.slices = halves});
}

TEST_CASE_FIXTURE(OnDisk, "of another program's tensors the rows are read that are asked for") {
  mh::OutlinedTensors tensors;
  for (const Slice& slice : slices) {
    tensors.outlines.push_back({slice.name, at::kFloat, slice.global_shape});
  }
  tensors.value = [this](const std::string& name) {
    return std::ranges::find(slices, name, &Slice::name)->local;
  };
  const std::vector<Slice> some{part_of(slices[1], 0, 1, 4), part_of(slices[2], 0, 0, 2)};
  mh::write_dcp_tensors(disk, place.path() / "dcp", tensors, "");
  mh::DcpFolder dcp(disk, place.path() / "dcp");
  check(dcp, {.slices = slices});
  check(dcp, {.slices = some});
  mh::write_hf_weights(disk, place.path() / "hf", tensors);
  mh::HfFolder hf(disk, place.path() / "hf");
  check(hf, {.slices = slices});
  check(hf, {.slices = some});
}

TEST_CASE_FIXTURE(OnDisk, "a save in the background holds a copy of all that is saved") {
  mh::StepFolder folder(disk, place.path(), mh::kManifestName, [](const std::string&) {});
  mh::BackgroundSaves saves(
      [&](const mh::CheckpointContents& contents, const mh::Ranks&) {
        mh::write_checkpoint(disk, folder, contents.step, {{"a", 1}}, contents.slices);
      },
      mh::Ranks(),
      mh::Ranks()
  );
  saves.plan(slices);
  const auto save = [&](int64_t step) {
    saves.begin({.step = step, .state = "{}", .slices = slices});
    CHECK_FALSE(saves.wait()->error);
  };
  check_said(peak_of([&] { save(1); }), static_cast<uint64_t>(saves.bytes()));
  CHECK(peak_of([&] { save(2); }) < 8e6); // the copy's memory is used again
}

} // namespace memory_tests
