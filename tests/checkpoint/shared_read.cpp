// Ranks of one machine that read a checkpoint together.

#include "core/checkpoint/shared_read.hpp"

#include "core/mesh/threads.hpp"
#include "core/storage/memory_storage.hpp"
#include "megahost/mesh.hpp"
#include "samples.hpp"
#include "tests/formats/refusal.hpp"

#include <doctest/doctest.h>

#include <mutex>

namespace shared_read_tests {

using namespace mh::test;
using mh::MemoryStorage;
using mh::Slice;

TEST_CASE("a rank that cannot fill its slices tells it, and the others have theirs") {
  MemoryStorage store;
  mh::StepFolder folder(store, "run", mh::kManifestName, [](const std::string&) {});
  mh::write_checkpoint(store, folder, 10, {{"samples", 8}}, model());
  std::mutex mutex;
  std::vector<std::string> said(3);
  mh::run_ranks({.dp = 3}, [&](const mh::Mesh& mesh) {
    mh::Checkpoint saved(store, folder.path(10));
    std::vector<Slice> slices = blank(model());
    const bool fails = mesh.rank() == 1;
    if (fails) { // rows that are one: no values can be copied there
      slices[0].local = at::zeros({1, 6}).expand({4, 6});
    }
    const std::string why = refusal([&] {
      mh::together(mh::ranks_of(mesh.all()), [&] {
        mh::read_together(saved, slices, mh::ranks_of(mesh.all()), "machine");
        return std::string();
      });
    });
    const std::scoped_lock lock(mutex);
    said[static_cast<size_t>(mesh.rank())] = why;
    CHECK((fails || equal(slices, model())));
  });
  for (const std::string& why : said) {
    CHECK(contains(why, "unsupported operation"));
  }
}

} // namespace shared_read_tests
