#include "core/checkpoint/checkpoint.hpp"

#include "core/formats/crc32c.hpp"
#include "core/mesh/collective_log.hpp"
#include "samples.hpp"
#include "tests/formats/refusal.hpp"

#include <ATen/ops/zeros.h>

#include <doctest/doctest.h>

#include <functional>
#include <memory>
#include <random>

using mh::Checkpoint;
using mh::OtherDtype;
using mh::Slice;
using namespace mh::test;

TEST_CASE_FIXTURE(Saves, "what is saved is loaded, bit for bit") {
  save(10, model());
  auto loaded = blank(model());
  load(10, loaded);
  CHECK(equal(loaded, model()));
  const Checkpoint saved(disk, folder.path(10));
  CHECK(saved.manifest().step == 10);
  CHECK(saved.manifest().state == nlohmann::json{{"samples", 80}});
  CHECK(folder.newest(mh::whole_checkpoint(disk)) == 10);
  CHECK(
      files.list(folder.path(10)) ==
      std::vector<std::string>{
          "megahost.manifest.json", "shard-00001-model-00001-of-00001.safetensors"}
  );
}

TEST_CASE_FIXTURE(
    Saves, "a checkpoint of a newer version is refused, and none before it is taken"
) {
  save(1, model());
  save(2, model());
  const mh::Path manifest = folder.path(2) / mh::kManifestName;
  std::string text = mh::get_text(disk, manifest, 1 << 20);
  text.replace(text.find("\"version\":1"), 11, "\"version\":2");
  const std::string body = text.substr(0, text.rfind(",\n\"crc32c\""));
  mh::put_text(
      disk, manifest, body + ",\n\"crc32c\":\"" + mh::crc_text(mh::crc32c(body)) + "\"}\n"
  );
  std::unique_ptr<Checkpoint> saved;
  const auto load_any = [&] {
    (void)mh::load_newest(
        "/run",
        folder.steps(),
        {.open = [&](int64_t step
                 ) { saved = std::make_unique<Checkpoint>(disk, folder.path(step)); },
         .judge = [] {},
         .load = [&] { saved->require_whole(); }},
        [&](const std::string& sentence) { warnings.push_back(sentence); }
    );
  };
  const auto verify_any = [&] { (void)folder.newest(mh::whole_checkpoint(disk)); };
  for (const auto& action : {std::function<void()>(load_any), std::function<void()>(verify_any)}) {
    CHECK(contains(refusal(action), "megahost.manifest.json: version 2, expected 1"));
  }
  CHECK(warnings.empty());
}

TEST_CASE_FIXTURE(Saves, "the same state gives the same bytes, in whatever order it is named") {
  save(1, model());
  auto reversed = model();
  std::reverse(reversed.begin(), reversed.end());
  mh::StepFolder other(disk, "/other", mh::kManifestName, [](const std::string&) {});
  other.recover();
  mh::write_checkpoint(disk, other, 1, {{"samples", 8}}, reversed);
  for (const std::string& name : files.list(folder.path(1))) {
    CHECK(files.contents(folder.path(1) / name) == files.contents(other.path(1) / name));
  }
}

namespace {

/// Loads as a run does that resumes.
std::optional<int64_t> load_newest(
    Saves& saves,
    const std::vector<Slice>& slices,
    const mh::Ranks& ranks = {},
    const std::function<void()>& before_load = [] {}
) {
  std::optional<Checkpoint> saved;
  return mh::load_newest(
      saves.folder.root(),
      saves.folder.steps(),
      {.open = [&](int64_t step) { saved.emplace(saves.disk, saves.folder.path(step)); },
       .judge =
           [&] {
             for (const Slice& slice : slices) {
               (void)mh::require_fit(*saved, slice);
             }
           },
       .load =
           [&] {
             before_load();
             saved->load(slices);
           }},
      [&saves](const std::string& sentence) { saves.warnings.push_back(sentence); },
      ranks
  );
}

} // namespace

TEST_CASE_FIXTURE(Saves, "the newest checkpoint is read once, its checksums included") {
  save(10, model());
  save(20, model(2));
  uint64_t bytes = 8; // the length of a safetensors header is read by itself, and with it
  for (const std::string& name : files.list(folder.path(20))) {
    bytes += files.contents(folder.path(20) / name).size();
  }
  files.bytes_read = 0;
  const auto loaded = blank(model());
  CHECK(load_newest(*this, loaded) == 20);
  CHECK(equal(loaded, model(2)));
  CHECK(files.bytes_read == bytes);
}

TEST_CASE_FIXTURE(Saves, "a chunk of which several slices are parts is read and hashed once") {
  const Slice weight = whole("w", counting({12, 8}, 1));
  save(10, {weight, whole("other", counting({64}, 1))});
  uint64_t bytes = 8;
  for (const std::string& name : files.list(folder.path(10))) {
    bytes += files.contents(folder.path(10) / name).size();
  }
  std::vector<Slice> expected;
  for (int64_t i = 0; i < 6; ++i) { // as the parts of a fused tensor, and under another layout
    expected.push_back(part_of(weight, i % 2, i / 2, 4));
  }
  const auto loaded = blank(expected);
  files.bytes_read = 0;
  CHECK(load_newest(*this, loaded) == 10);
  CHECK(equal(loaded, expected));
  CHECK(files.bytes_read == bytes - 64 * sizeof(float)); // nor is what is not asked for
}

TEST_CASE_FIXTURE(
    Saves, "a checkpoint that is damaged is passed over, one that does not fit is not"
) {
  save(10, model());
  save(20, model(2));
  std::string& shard =
      files.contents(folder.path(20) / "shard-00001-model-00001-of-00001.safetensors");
  shard.back() = static_cast<char>(shard.back() ^ 1);
  const auto loaded = blank(model());
  CHECK(load_newest(*this, loaded) == 10);
  CHECK(equal(loaded, model()));
  REQUIRE(warnings.size() == 1);
  CHECK(contains(warnings[0], "the checkpoint of step 20 is damaged"));
  shard.back() = static_cast<char>(shard.back() ^ 1);
  const auto other = std::vector{whole("layer.weight", counting({4, 5}, 1))};
  CHECK(contains(
      refusal([&] { (void)load_newest(*this, other); }),
      "step-000000000020: tensor \"layer.weight\" has shape [4, 6], the model has [4, 5]"
  ));
}

TEST_CASE_FIXTURE(Saves, "a rank that is lost while ranks load says nothing of the checkpoint") {
  save(10, model());
  save(20, model(2));
  bool is_lost = false;
  mh::Ranks ranks;
  ranks.gather = [&is_lost](const std::string& text) {
    if (is_lost) {
      throw mh::CollectiveError("rank 0 lost the others", "", {});
    }
    return std::vector{text};
  };
  const auto resume = [&] { (void)load_newest(*this, {}, ranks, [&] { is_lost = true; }); };
  CHECK_THROWS_AS(resume(), mh::CollectiveError);
  CHECK(warnings.empty());
}

TEST_CASE_FIXTURE(Saves, "tensors that no slice asks for are named") {
  save(10, model());
  const Checkpoint saved(disk, folder.path(10));
  CHECK(mh::unused_tensors(saved, model()).empty());
  CHECK(
      mh::unused_tensors(saved, {model()[0], model()[3]}) ==
      std::vector<std::string>{"layer.bias", "optimizer.exp_avg.layer.weight", "steps"}
  );
}

TEST_CASE_FIXTURE(Saves, "some tensors are loaded, one tensor is read") {
  save(10, model());
  std::vector<Slice> some{blank(model())[1]};
  load(10, some);
  CHECK(some[0].local.equal(model()[1].local));
  CHECK(Checkpoint(disk, folder.path(10)).tensor("layer.weight").equal(model()[0].local));
}

TEST_CASE_FIXTURE(Saves, "any chunks are read as any slices") {
  const Slice weight = whole("w", counting({12, 8}, 1));
  for (const auto& [dim, parts] :
       std::vector<std::pair<int64_t, int64_t>>{{0, 1}, {0, 3}, {0, 4}, {1, 2}, {1, 4}}) {
    std::vector<Slice> slices;
    for (int64_t i = 0; i < parts; ++i) {
      slices.push_back(part_of(weight, dim, i, parts));
    }
    save(1, slices); // several chunks of one name on one rank: several files
    CHECK(files.list(folder.path(1)).size() == static_cast<size_t>(parts) + 1);
    for (const auto& [to_dim, to_parts] :
         std::vector<std::pair<int64_t, int64_t>>{{0, 1}, {0, 2}, {0, 6}, {1, 2}, {1, 8}}) {
      for (int64_t i = 0; i < to_parts; ++i) {
        const Slice expected = part_of(weight, to_dim, i, to_parts);
        const auto loaded = blank({expected});
        load(1, loaded);
        CHECK(loaded[0].local.equal(expected.local));
      }
    }
  }
}

TEST_CASE_FIXTURE(Saves, "slices may be views of padded or packed storage") {
  const Slice weight = whole("w", counting({4, 6}, 1));
  save(1, {weight});
  const at::Tensor storage = at::zeros({10, 8}).requires_grad_();
  Slice view = weight;
  view.local = storage.detach().narrow(0, 3, 4).narrow(1, 1, 6);
  load(1, {view});
  CHECK(view.local.equal(weight.local));
  CHECK(storage.sum().item<double>() == weight.local.sum().item<double>());
}

TEST_CASE_FIXTURE(Saves, "what does not fit the model is refused before any value changes") {
  save(10, model());
  const auto why = [this](size_t at, const Slice& wrong) {
    auto slices = blank(model());
    slices.push_back(slices[at]);
    slices[at] = wrong;
    const std::string sentence = refusal([&] { load(10, slices); });
    for (size_t i = 0; i < slices.size(); ++i) {
      CHECK(slices[i].local.count_nonzero().item<int64_t>() == 0);
    }
    return sentence;
  };
  CHECK(
      why(0, whole("layer.weigth", at::zeros({4, 6}))) ==
      "/run/step-000000000010: there is no tensor \"layer.weigth\""
  );
  CHECK(
      why(0, whole("layer.weight", at::zeros({6, 4}))) ==
      "/run/step-000000000010: tensor \"layer.weight\" has shape [4, 6], the model has [6, 4]"
  );
  CHECK(
      why(4, whole("layer.weight", at::zeros({4}))) ==
      "/run/step-000000000010: tensor \"layer.weight\" has shape [4, 6], the model has [4]"
  );
  CHECK(
      why(1, whole("layer.bias", at::zeros({4}))) ==
      "/run/step-000000000010: tensor \"layer.bias\" is BF16, the model has F32"
  );
}

TEST_CASE_FIXTURE(Saves, "another dtype is converted where that is asked for") {
  save(10, model());
  const std::vector<Slice> wide{whole("layer.bias", at::zeros({4}))};
  load(10, wide, OtherDtype::convert);
  CHECK(wide[0].local.equal(model()[1].local.to(at::kFloat)));
}

TEST_CASE_FIXTURE(Saves, "slices that do not cover a tensor are not saved") {
  save(1, model());
  const Slice weight = whole("w", counting({4, 6}, 1));
  CHECK(contains(
      refusal([&] { save(2, {part_of(weight, 0, 0, 2)}); }),
      "tensor \"w\": its chunks hold 48 of 96 bytes"
  ));
  CHECK(contains(refusal([&] { save(2, {weight, part_of(weight, 0, 0, 2)}); }), "overlaps"));
  CHECK(folder.steps() == std::vector<int64_t>{1});
  CHECK(files.list("/run") == std::vector<std::string>{"LATEST", "step-000000000001"});
}

TEST_CASE_FIXTURE(Saves, "a slice of no elements is neither written nor read") {
  Slice nothing = whole("w", counting({4, 6}, 1));
  Slice none = nothing;
  none.offset = {4, 0};
  none.local = at::zeros({0, 6});
  save(1, {nothing, none});
  load(1, {none});
  CHECK(folder.newest(mh::whole_checkpoint(disk)) == 1);
}
