// A damaged checkpoint is refused with a sentence, and a failing disk leaves the checkpoints before
// it alone.

#include "core/storage/memory_storage.hpp"
#include "samples.hpp"
#include "tests/formats/refusal.hpp"

#include <doctest/doctest.h>

#include <cerrno>
#include <random>

using mh::Checkpoint;
using mh::Path;
using namespace mh::test;

namespace {

const Path kShard = "/run/step-000000000010/shard-00001-model-00001-of-00001.safetensors";
const Path kManifest = "/run/step-000000000010/megahost.manifest.json";

struct Damaged : Saves {
  Damaged() { save(10, model()); }

  /// The sentence with which `load` refuses, which must be that of `verify` too.
  std::string why() {
    const auto slices = blank(model());
    const std::string sentence = refusal([&] { load(10, slices); });
    CHECK_FALSE(sentence.empty());
    CHECK_FALSE(refusal([&] { Checkpoint(disk, folder.path(10)).require_whole(); }).empty());
    return sentence;
  }
};

} // namespace

TEST_CASE_FIXTURE(Damaged, "each cause has its sentence, with file and tensor") {
  std::string& shard = files.contents(kShard);
  const std::string file = kShard.string() + ": ";
  SUBCASE("cut short") {
    shard.resize(shard.size() - 1);
    CHECK(contains(
        why(),
        file + std::to_string(shard.size()) + " bytes, expected " +
            std::to_string(shard.size() + 1) + ": it is cut short"
    ));
  }
  SUBCASE("too long") {
    shard += "x";
    CHECK(contains(why(), file + std::to_string(shard.size()) + " bytes, expected "));
  }
  SUBCASE("changed") {
    shard.back() ^= 1;
    CHECK(why() == file + "tensor \"layer.bias\" does not match its checksum");
  }
  SUBCASE("missing") {
    disk.remove(kShard);
    CHECK(why() == "cannot open " + kShard.string() + ": No such file or directory");
  }
  SUBCASE("another tensor's name") {
    shard.replace(shard.find("\"scale\""), 7, "\"scalf\"");
    CHECK(why() == file + "tensor \"scale\" is not in it, though the manifest says so");
  }
  SUBCASE("another shape") {
    shard.replace(shard.find("[4,6]"), 5, "[6,4]");
    CHECK(contains(why(), "is F32 [6, 4], the manifest says F32 [4, 6]"));
  }
  SUBCASE("the manifest") {
    files.contents(kManifest)[50] ^= 1;
    CHECK(why() == kManifest.string() + ": its checksum does not match");
  }
  SUBCASE("the manifest cut short") {
    files.contents(kManifest).resize(200);
    CHECK(contains(why(), kManifest.string() + ": does not end in its checksum"));
  }
  SUBCASE("no manifest") {
    disk.remove(kManifest);
    CHECK(why() == "cannot open " + kManifest.string() + ": No such file or directory");
  }
}

TEST_CASE_FIXTURE(Damaged, "an older shard in place of the newer") {
  save(20, model(5));
  files.contents(kShard) =
      files.contents("/run/step-000000000020/shard-00001-model-00001-of-00001.safetensors");
  CHECK(contains(why(), "does not match its checksum"));
}

TEST_CASE_FIXTURE(Damaged, "two shards in each other's place") {
  const mh::Slice weight = whole("w", counting({4, 6}, 1));
  save(30, {part_of(weight, 0, 0, 2), part_of(weight, 0, 1, 2)});
  const Path directory = folder.path(30);
  std::swap(
      files.contents(directory / "shard-00001-model-00001-of-00002.safetensors"),
      files.contents(directory / "shard-00001-model-00002-of-00002.safetensors")
  );
  const auto loaded = blank({weight});
  CHECK(contains(
      refusal([&] { load(30, loaded); }),
      "shard-00001-model-00001-of-00002.safetensors: tensor \"w\" does not match"
  ));
}

TEST_CASE_FIXTURE(Damaged, "every flipped bit of the shard is found") {
  std::string& shard = files.contents(kShard);
  for (size_t at = 0; at < shard.size(); ++at) {
    const int bit = static_cast<int>(at * 7 % 8);
    shard[at] = static_cast<char>(shard[at] ^ 1 << bit);
    CAPTURE(at);
    CHECK_FALSE(refusal([&] { Checkpoint(disk, folder.path(10)).require_whole(); }).empty());
    shard[at] = static_cast<char>(shard[at] ^ 1 << bit);
  }
  CHECK(refusal([&] { Checkpoint(disk, folder.path(10)).require_whole(); }).empty());
}

TEST_CASE_FIXTURE(Damaged, "every cut of the shard is found") {
  const std::string whole_shard = files.contents(kShard);
  for (size_t length = 0; length < whole_shard.size(); ++length) {
    files.contents(kShard) = whole_shard.substr(0, length);
    CHECK(contains(refusal([&] { load(10, blank(model())); }), kShard.string()));
  }
}

TEST_CASE_FIXTURE(Damaged, "the newest whole checkpoint is chosen") {
  save(20, model(5));
  files.contents("/run/step-000000000020/megahost.manifest.json")[0] = 'x';
  CHECK(folder.newest(mh::whole_checkpoint(disk)) == 10);
  REQUIRE(warnings.size() == 1);
  CHECK(contains(warnings[0], "the checkpoint of step 20 is damaged"));
}

TEST_CASE("whatever call fails while saving, the checkpoint before can be loaded") {
  for (const int code : {ENOSPC, EIO, EROFS}) {
    bool failed = true;
    for (size_t at = 1; failed; ++at) {
      Saves saves;
      saves.save(10, model(1));
      saves.files.longest_write = 50;
      saves.files.fault = Fault{saves.files.calls + at, code, true};
      const std::string sentence = refusal([&] { saves.save(20, model(2)); });
      failed = saves.files.calls >= saves.files.fault->at;
      CHECK((sentence.empty() || contains(sentence, "cannot ")));
      saves.files.fault.reset();
      const auto newest = saves.folder.newest(mh::whole_checkpoint(saves.disk));
      REQUIRE(newest);
      CHECK((sentence.empty() ? newest == 20 : (newest == 10 || newest == 20)));
      const auto loaded = blank(model());
      saves.load(*newest, loaded);
      CHECK(equal(loaded, model(*newest == 20 ? 2 : 1)));
      saves.folder.recover();
      saves.save(30, model(3));
    }
  }
}

TEST_CASE_FIXTURE(Damaged, "an error while reading is a sentence") {
  bool failed = true;
  for (size_t at = 1; failed; ++at) {
    files.fault = Fault{files.calls + at, EIO, true};
    const auto loaded = blank(model());
    const std::string sentence = refusal([&] { load(10, loaded); });
    failed = files.calls >= files.fault->at;
    CHECK((failed ? contains(sentence, "Input/output error") : sentence.empty()));
    files.fault.reset();
  }
}

TEST_CASE("killed or without power at any moment of a save, a whole checkpoint is loaded") {
  Saves saves;
  saves.save(10, model(1));
  const size_t first = saves.files.log().size();
  saves.save(20, model(2));
  saves.save(20, model(3));
  const auto log = saves.files.log();
  std::mt19937 random(5);
  for (size_t count = first; count <= log.size(); ++count) {
    for (int round = 0; round < 5; ++round) {
      MemoryFileSystem files(
          round == 0 ? after_kill(log, count) : after_power_loss(log, count, random)
      );
      mh::LocalStorage disk(files);
      mh::StepFolder folder(disk, "/run", mh::kManifestName, [](const std::string&) {});
      folder.recover();
      const auto newest = folder.newest(mh::whole_checkpoint(disk));
      REQUIRE(newest);
      const auto loaded = blank(model());
      Checkpoint(disk, folder.path(*newest)).load(loaded);
      CHECK((equal(loaded, model(1)) || equal(loaded, model(2)) || equal(loaded, model(3))));
      CHECK(equal(loaded, model(1)) == (newest == 10));
    }
  }
}

namespace {

/// A run's checkpoints in an object store.
struct StoreSaves {
  mh::MemoryStorage store;
  mh::StepFolder folder{store, "/run", mh::kManifestName, [](const std::string&) {}};

  explicit StoreSaves(mh::MemoryStorage::Objects objects = {})
      : store(std::move(objects)) {}

  void save(int64_t step, double start) {
    mh::write_checkpoint(store, folder, step, nlohmann::json::object(), model(start));
  }

  /// The newest step that is whole, and the model it holds.
  std::pair<int64_t, std::vector<mh::Slice>> restart() {
    folder.recover();
    const auto newest = folder.newest(mh::whole_checkpoint(store));
    REQUIRE(newest);
    auto loaded = blank(model());
    Checkpoint(store, folder.path(*newest)).load(loaded);
    return {*newest, std::move(loaded)};
  }
};

} // namespace

TEST_CASE("killed at any moment of a save to an object store, a whole checkpoint is loaded") {
  StoreSaves saves;
  saves.save(10, 1);
  const size_t first = saves.store.history().size() - 1;
  saves.save(20, 2);
  saves.save(20, 3);
  CHECK(saves.folder.remove(10));
  for (size_t count = first; count < saves.store.history().size(); ++count) {
    StoreSaves killed(saves.store.history()[count]);
    const auto [step, loaded] = killed.restart();
    CHECK((equal(loaded, model(1)) || equal(loaded, model(2)) || equal(loaded, model(3))));
    CHECK(equal(loaded, model(1)) == (step == 10));
  }
  CHECK(saves.restart().first == 20);
}

TEST_CASE("an object store that stops after any call leaves the checkpoint before or the new one") {
  bool stopped = true;
  for (size_t at = 1; stopped; ++at) {
    StoreSaves saves;
    saves.save(10, 1);
    saves.save(20, 2);
    saves.store.fault = {.at = saves.store.calls + at, .code = EIO};
    const std::string sentence = refusal([&] { saves.save(20, 3); });
    stopped = saves.store.calls >= saves.store.fault->at;
    saves.store.fault.reset();
    StoreSaves next(saves.store.objects());
    const auto [step, loaded] = next.restart();
    CHECK(step == 20);
    CHECK((equal(loaded, model(2)) || equal(loaded, model(3))));
    CHECK((!sentence.empty() || equal(loaded, model(3))));
    next.save(30, 4);
    CHECK(next.restart().first == 30);
  }
}
