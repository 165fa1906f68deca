// Several ranks save together; ranks are threads here, and their disk is one.

#include "core/storage/local.hpp"
#include "samples.hpp"
#include "tests/formats/refusal.hpp"

#include <doctest/doctest.h>

#include <barrier>
#include <thread>

using mh::Checkpoint;
using mh::LocalStorage;
using mh::Path;
using mh::Slice;
using namespace mh::test;

namespace {

/// The ranks' meeting place.
class Meeting {
public:
  explicit Meeting(int64_t world)
      : texts_(static_cast<size_t>(world))
      , barrier_(world) {}

  mh::Ranks ranks(int64_t rank) {
    return {rank, [this, rank](const std::string& text) {
              texts_[static_cast<size_t>(rank)] = text;
              barrier_.arrive_and_wait();
              auto all = texts_;
              barrier_.arrive_and_wait();
              return all;
            }};
  }

private:
  std::vector<std::string> texts_;
  std::barrier<> barrier_;
};

struct World {
  LocalStorage disk;
  Path root;

  World() {
    std::string name = (std::filesystem::temp_directory_path() / "megahost-ranks-XXXXXX").string();
    root = mkdtemp(name.data());
  }

  ~World() { mh::remove_tree(mh::file_system(), root); }

  /// Saves what each rank holds; what each rank's save said.
  std::vector<std::string> save(int64_t step, const std::vector<std::vector<Slice>>& slices) {
    const auto world = static_cast<int64_t>(slices.size());
    Meeting meeting(world);
    std::vector<std::string> said(slices.size());
    std::vector<std::jthread> threads;
    for (int64_t rank = 0; rank < world; ++rank) {
      threads.emplace_back([&, rank] {
        mh::StepFolder folder(disk, root, mh::kManifestName, [](const std::string&) {});
        const auto at = static_cast<size_t>(rank);
        said[at] = refusal([&] {
          mh::write_checkpoint(
              disk, folder, step, {{"rank", rank}}, slices[at], meeting.ranks(rank)
          );
        });
      });
    }
    threads.clear();
    return said;
  }

  Path path(int64_t step) { return mh::StepFolder(disk, root, mh::kManifestName, {}).path(step); }
};

} // namespace

TEST_CASE_FIXTURE(
    World, "slices of four ranks, two of each kind the same, load on one rank and on three"
) {
  const Slice weight = whole("w", counting({12, 4}, 1));
  const Slice bias = whole("b", counting({12}, 100));
  std::vector<std::vector<Slice>> held;
  for (int64_t rank = 0; rank < 4; ++rank) { // two tensor parallel ranks, twice
    held.push_back({part_of(weight, 0, rank % 2, 2), bias});
  }
  CHECK(save(1, held) == std::vector<std::string>(4));
  Checkpoint saved(disk, path(1));
  saved.require_whole();
  CHECK(saved.manifest().state == nlohmann::json{{"rank", 0}});
  CHECK(saved.manifest().find("w")->chunks.size() == 2);
  CHECK(saved.manifest().find("b")->chunks.size() == 1);
  CHECK(saved.manifest().files.size() >= 2);
  CHECK(saved.tensor("w").equal(weight.local));
  for (int64_t rank = 0; rank < 3; ++rank) {
    const Slice expected = part_of(weight, 0, rank, 3);
    const auto loaded = blank({expected, bias});
    saved.load(loaded);
    CHECK(equal(loaded, {expected, bias}));
  }
}

TEST_CASE_FIXTURE(World, "what all ranks hold is shared out evenly") {
  std::vector<Slice> all;
  for (int i = 0; i < 16; ++i) {
    all.push_back(whole("t" + std::to_string(i), counting({64}, i)));
  }
  CHECK(save(1, {all, all, all, all}) == std::vector<std::string>(4));
  const auto manifest = Checkpoint(disk, path(1)).manifest();
  REQUIRE(manifest.files.size() == 4);
  for (const mh::StoredFile& file : manifest.files) {
    CHECK(file.size < 4 * 64 * 4 + 1024);
  }
}

TEST_CASE_FIXTURE(World, "one rank's failure is every rank's, and leaves nothing behind") {
  const Slice weight = whole("w", counting({4, 4}, 1));
  const auto good =
      std::vector<std::vector<Slice>>{{part_of(weight, 0, 0, 2)}, {part_of(weight, 0, 1, 2)}};
  CHECK(save(1, good) == std::vector<std::string>(2));

  auto wrong = good;
  wrong[1][0].global_shape = {5, 4};
  const auto said = save(2, wrong);
  CHECK(contains(said[0], "ranks disagree about the shape or dtype of tensor \"w\""));
  CHECK(said[1] == said[0]);

  auto missing = good;
  missing[1].clear();
  CHECK(contains(save(2, missing)[1], "its chunks hold 32 of 64 bytes"));

  auto unknown = good;
  unknown[1][0].local = unknown[1][0].local.to(at::kComplexDouble);
  CHECK(contains(save(2, unknown)[0], "no dtype like ComplexDouble"));

  CHECK(mh::file_system().list(root) == std::vector<std::string>{"LATEST", "step-000000000001"});
}
