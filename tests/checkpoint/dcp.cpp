// Folders of torch.distributed.checkpoint and files of torch.save; what PyTorch itself says of them
// is in tests/parity/dcp.py.

#include "core/foreign/dcp.hpp"

#include "core/foreign/torch_folder.hpp"
#include "core/storage/memory_storage.hpp"
#include "samples.hpp"
#include "tests/formats/refusal.hpp"
#include "tests/formats/torch_samples.hpp"

#include <ATen/ops/ones.h>

#include <doctest/doctest.h>

using mh::DcpFolder;
using mh::DcpFormat;
using mh::MemoryStorage;
using mh::Path;
using namespace mh::test;

namespace {

const Path kItems = "run/dcp/step-000000000010/__0_0.distcp";
const Path kFolder = kItems.parent_path();

struct Written {
  MemoryStorage store;
  DcpFormat format{{}, {.storage = store}};

  Written() { write(10); }

  void write(int64_t step, double start = 1) {
    const auto slices = model(start);
    format.write("run", {.step = step, .state = "{\"a\":1}", .slices = slices}, {});
  }

  std::vector<std::string> damages() {
    return DcpFolder(store, kFolder).verify([](uint64_t) {}).damages;
  }
};

std::string sample_file(const char* bytes, size_t size) {
  return {bytes, size - 1};
}

} // namespace

TEST_CASE_FIXTURE(Written, "what a run writes is read again, under its own names") {
  CHECK(format.detect("run"));
  CHECK(format.detect(kFolder));
  CHECK_FALSE(format.detect("elsewhere"));
  CHECK(format.steps("run") == std::vector<int64_t>{10});
  CHECK(format.steps(kFolder) == std::nullopt);
  const auto saved = format.open("run", 10);
  CHECK(saved->state() == "{\"a\":1}");
  CHECK(saved->names() == mh::TensorNames::own);
  REQUIRE(saved->tensors().size() == model().size());
  CHECK(saved->find("layer.weight")->is_weight);
  CHECK_FALSE(saved->find("optimizer.exp_avg.layer.weight")->is_weight);
  const auto read = blank(model());
  saved->read(read);
  CHECK(equal(read, model()));
  CHECK(damages().empty());
}

TEST_CASE_FIXTURE(Written, "old steps go, and a step is not there without its .metadata") {
  write(20);
  write(30);
  format.remove("run", 10);
  CHECK(format.steps("run") == std::vector<int64_t>{30, 20});
  store.remove("run/dcp/step-000000000030/.metadata");
  CHECK(format.steps("run") == std::vector<int64_t>{20});
  format.recover("run", [](const std::string&) {});
  CHECK(store.list("run/dcp/step-000000000030").empty());
}

TEST_CASE("slices are written, and any other slices are read") {
  MemoryStorage store;
  const mh::Slice weight = whole("w", counting({8, 6}, 1));
  const DcpFormat format({}, {.storage = store});
  std::vector<mh::Slice> parts{part_of(weight, 0, 0, 2), part_of(weight, 0, 1, 2)};
  format.write("run", {.step = 1, .state = "{}", .slices = parts}, {});
  const auto saved = format.open("run", 1);
  REQUIRE(saved->boxes().size() == 2);
  CHECK(saved->boxes()[1].offset == std::vector<int64_t>{4, 0});
  const auto middle = blank({part_of(weight, 1, 1, 3)}); // columns 2 and 3 of all rows
  saved->read(middle);
  CHECK(equal(middle, {part_of(weight, 1, 1, 3)}));
  // A read of rows 2 to 4 takes no byte of the other chunk, and of this one only those rows.
  const auto rows = blank({part_of(weight, 0, 1, 4)});
  store.bytes_read = 0;
  saved->read(rows);
  CHECK(equal(rows, {part_of(weight, 0, 1, 4)}));
  const uint64_t item = store.objects().at("run/dcp/step-000000000001/__0_0.distcp").size();
  CHECK(store.bytes_read <= item);
  // A chunk that is not there is found before anything is written.
  CHECK(contains(
      refusal([&] {
        format.write("run", {.step = 2, .state = "{}", .slices = {&parts[0], 1}}, {});
      }),
      "\"w\": its chunks hold 96 of 192 bytes"
  ));
  CHECK(format.steps("run") == std::vector<int64_t>{1});
}

TEST_CASE_FIXTURE(Written, "two tensors at one place are no way to read one as the other") {
  mh::DcpMetadata metadata =
      mh::read_dcp_metadata(store.contents(kFolder / ".metadata"), ".metadata");
  REQUIRE(metadata.tensors[1].name == "layer.weight");
  metadata.tensors[0].chunks[0].place = metadata.tensors[1].chunks[0].place; // layer.bias
  store.contents(kFolder / ".metadata") = mh::dcp_metadata_text(metadata);
  const auto saved = format.open("run", 10);
  CHECK(contains(
      refusal([&] { saved->read(blank(model())); }),
      "tensor \"layer.bias\": it is float32 [4, 6], .metadata says bfloat16 [4]"
  ));
}

TEST_CASE_FIXTURE(Written, "each flipped bit of an item is found") {
  std::string& items = store.contents(kItems);
  const auto saved = format.open("run", 10);
  for (const char* name : {"layer.weight", "scale", "steps"}) {
    const at::Tensor value = mh::whole_tensor(*saved, name);
    const std::string bytes(static_cast<const char*>(value.data_ptr()), value.nbytes());
    const size_t at = items.find(bytes);
    REQUIRE(at != std::string::npos);
    for (const size_t place : {at, at + bytes.size() - 1}) {
      items[place] ^= 4;
      const auto found = damages();
      REQUIRE(found.size() == 1);
      CHECK(
          found[0] == kItems.string() + ": tensor \"" + name +
                          "\": \"archive/data/0\" does not match its checksum"
      );
      const auto again = format.open("run", 10);
      CHECK(refusal([&] { (void)mh::whole_tensor(*again, name); }) == found[0]);
      items[place] ^= 4;
    }
  }
  items.resize(items.size() - 1);
  REQUIRE(damages().size() == 1);
  CHECK(contains(damages()[0], "it is cut short"));
  store.remove(kItems);
  CHECK(contains(refusal([&] { DcpFolder folder(store, kFolder); }), kItems.string()));
}

TEST_CASE("tensors one at a time, in several files") {
  MemoryStorage store;
  const auto slices = model();
  mh::OutlinedTensors tensors;
  for (const mh::Slice& slice : slices) {
    tensors.outlines.push_back({slice.name, slice.local.scalar_type(), slice.global_shape});
  }
  tensors.value = [&](const std::string& name) {
    for (const mh::Slice& slice : slices) {
      if (slice.name == name) {
        return slice.local;
      }
    }
    throw mh::Error("no " + name);
  };
  tensors.file_bytes = 100;
  uint64_t done = 0;
  tensors.progress = [&](uint64_t bytes) { done = bytes; };
  CHECK(mh::write_dcp_tensors(store, "out", tensors, "{}") == tensors.bytes());
  CHECK(done == tensors.bytes());
  CHECK(store.contains("out/__0_1.distcp"));
  DcpFolder dcp(store, "out");
  auto read = blank(slices);
  dcp.read(read);
  CHECK(equal(read, slices));
  // The same as our own form.
  mh::StepFolder steps(store, "native", mh::kManifestName, [](const std::string&) {});
  mh::write_native_tensors(store, steps, 5, {{"a", 1}}, tensors);
  mh::Checkpoint native(store, steps.path(5));
  CHECK(native.manifest().files.size() > 1);
  CHECK(native.verify([](uint64_t) {}).damages.empty());
  read = blank(slices);
  native.read(read);
  CHECK(equal(read, slices));
  // One that cannot be had leaves nothing behind.
  tensors.outlines.push_back({"more", at::kFloat, {2}});
  CHECK(refusal([&] { mh::write_native_tensors(store, steps, 6, {}, tensors); }) == "no more");
  CHECK(steps.steps() == std::vector<int64_t>{5});
  CHECK(store.list("native/step-000000000006").empty());
}

TEST_CASE("a state_dict of torch.save, and names within other names") {
  MemoryStorage store;
  mh::put_text(store, "a/model.pt", sample_file(kTorchFile, sizeof kTorchFile));
  const mh::TorchFormat format({}, {.storage = store});
  CHECK(format.detect("a"));
  const auto saved = format.open("a", std::nullopt);
  REQUIRE(saved->tensors().size() == 4);
  CHECK(mh::whole_tensor(*saved, "weight").equal(counting({2, 3}, 0)));
  CHECK(mh::whole_tensor(*saved, "turned").equal(counting({2, 3}, 0, at::kLong).t()));
  CHECK(mh::whole_tensor(*saved, "half").equal(at::ones({3}, at::kBFloat16)));
  CHECK(saved->find("model.weight") == saved->find("weight"));
  CHECK(saved->find("layer.weight") == saved->find("weight")); // name in a bare model
  CHECK(saved->find("weights") == nullptr);
  CHECK(saved->verify([](uint64_t) {}).damages.empty());
  const mh::Slice turned = whole("turned", counting({2, 3}, 0, at::kLong).t().contiguous());
  const auto part = blank({part_of(turned, 0, 2, 3)});
  saved->read(part);
  CHECK(equal(part, {part_of(turned, 0, 2, 3)}));
  // Not where there are safetensors, nor where several files could be meant.
  mh::put_text(store, "a/other.pt", "x");
  CHECK_FALSE(format.detect("a"));
  mh::put_text(store, "b/pytorch_model.bin", "x");
  CHECK(format.detect("b"));
  CHECK(contains(
      refusal([&] { (void)format.open("b", std::nullopt); }), "b/pytorch_model.bin: 1 bytes"
  ));
  mh::put_text(store, "b/model.safetensors", "x");
  CHECK_FALSE(format.detect("b"));
}
