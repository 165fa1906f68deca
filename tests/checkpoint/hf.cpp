#include "core/checkpoint/hf.hpp"

#include "core/checkpoint/tensors.hpp"
#include "core/foreign/built_in.hpp"
#include "core/storage/local.hpp"
#include "core/storage/memory_storage.hpp"
#include "samples.hpp"
#include "tests/formats/refusal.hpp"

#include <doctest/doctest.h>

using mh::HfFolder;
using mh::LocalStorage;
using mh::Path;
using namespace mh::test;

namespace {

struct Folder {
  LocalStorage disk;
  Path path;
  mh::HuggingFaceFormat format{{}, {.storage = disk}};

  Folder() {
    std::string name = (std::filesystem::temp_directory_path() / "megahost-hf-XXXXXX").string();
    path = mkdtemp(name.data());
  }

  ~Folder() { mh::remove_tree(mh::file_system(), path); }

  std::string why() {
    return refusal([this] { HfFolder folder(disk, path); });
  }
};

} // namespace

TEST_CASE_FIXTURE(Folder, "a single file") {
  const at::Tensor a = counting({3, 2}, 1);
  (void)mh::write_tensors(
      disk, path / "model.safetensors", {{"b", counting({2}, 9, at::kBFloat16)}, {"a", a}}
  );
  mh::put_text(disk, path / "config.json", R"({"model_type": "llama"})");
  CHECK(format.detect(path));
  CHECK(format.config(path) == R"({"model_type": "llama"})");
  HfFolder folder(disk, path);
  REQUIRE(folder.tensors().size() == 2);
  CHECK(folder.tensors()[0].name == "a");
  CHECK(folder.tensors()[1].name == "b");
  CHECK(folder.find("a")->shape == std::vector<int64_t>{3, 2});
  CHECK(folder.find("c") == nullptr);
  CHECK(mh::whole_tensor(folder, "b").equal(counting({2}, 9, at::kBFloat16)));
  CHECK(contains(refusal([&] { (void)mh::whole_tensor(folder, "c"); }), "there is no tensor \"c\"")
  );
  const at::Tensor kept = mh::whole_tensor(folder, "a");
  CHECK(kept.equal(a));
  kept.zero_();
  CHECK(mh::whole_tensor(folder, "a").equal(a));
}

TEST_CASE("of a tensor only the rows of a slice are read, once") {
  mh::MemoryStorage store;
  const mh::Slice weight = whole("w", counting({8, 16}, 1));
  (void
  )mh::write_tensors(store, "m/model.safetensors", {{"w", weight.local}, {"v", counting({4}, 1)}});
  HfFolder folder(store, "m");
  store.bytes_read = 0;
  const auto expected = part_of(weight, 0, 1, 4);
  const auto rows = blank({expected});
  folder.read(rows);
  CHECK(equal(rows, {expected}));
  CHECK(store.bytes_read == 2 * 16 * sizeof(float));
  const auto columns = blank({part_of(expected, 1, 1, 2)});
  folder.read(columns);
  CHECK(equal(columns, {part_of(expected, 1, 1, 2)}));
}

TEST_CASE("bare names, constants and an output layer that is the embedding") {
  mh::MemoryStorage store;
  const at::Tensor some = counting({2, 2}, 1);
  (void)mh::write_tensors(
      store,
      "m/model.safetensors",
      {{"wte.weight", some}, {"h.0.attn.bias", some}, {"lm_head.weight", some}}
  );
  CHECK(HfFolder(store, "m").find("lm_head.weight")->is_weight);
  mh::put_text(store, "m/config.json", R"({"tie_word_embeddings": true})");
  const HfFolder folder(store, "m");
  CHECK(folder.find("transformer.wte.weight")->name == "wte.weight");
  CHECK(folder.find("wte.weight")->is_weight);
  CHECK_FALSE(folder.find("h.0.attn.bias")->is_weight);
  CHECK_FALSE(folder.find("lm_head.weight")->is_weight);
}

TEST_CASE_FIXTURE(Folder, "a tensor that is not aligned is copied") {
  const std::string json = R"({"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})";
  std::string bytes{static_cast<char>(json.size()), 0, 0, 0, 0, 0, 0, 0};
  REQUIRE((8 + json.size()) % 4 != 0);
  const at::Tensor value = counting({2}, 1);
  bytes += json + std::string(static_cast<const char*>(value.data_ptr()), 8);
  mh::put_text(disk, path / "model.safetensors", bytes);
  HfFolder folder(disk, path);
  CHECK(mh::whole_tensor(folder, "w").equal(value));
}

TEST_CASE_FIXTURE(Folder, "several files with an index") {
  (void)mh::write_tensors(disk, path / "1.safetensors", {{"a", counting({2}, 1)}});
  (void)mh::write_tensors(disk, path / "2.safetensors", {{"b", counting({2}, 2)}});
  const Path index = path / "model.safetensors.index.json";
  mh::put_text(disk, index, R"({"weight_map": {"a": "1.safetensors", "b": "2.safetensors"}})");
  HfFolder folder(disk, path);
  CHECK(mh::whole_tensor(folder, "b").equal(counting({2}, 2)));
  mh::put_text(disk, index, R"({"weight_map": {"a": "1.safetensors", "b": "1.safetensors"}})");
  CHECK(contains(why(), "tensor \"b\" is not in \"1.safetensors\""));
  mh::put_text(disk, index, R"({"weight_map": {"a": "1.safetensors", "b": "3.safetensors"}})");
  CHECK(contains(why(), "3.safetensors: No such file or directory"));
  mh::put_text(disk, index, R"({"weight_map": {"a": "../1.safetensors"}})");
  CHECK(contains(why(), "no bare file name"));
}

TEST_CASE_FIXTURE(Folder, "what is no model") {
  CHECK_FALSE(format.detect(path));
  CHECK(contains(why(), "neither model.safetensors nor model.safetensors.index.json"));
  mh::put_text(disk, path / "model.safetensors", "");
  CHECK(contains(why(), "only 0 bytes"));
  mh::put_text(disk, path / "model.safetensors", "12345678{}");
  CHECK(contains(why(), "model.safetensors: the header claims"));
  mh::put_text(disk, path / "model.safetensors", std::string("\2\0\0\0\0\0\0\0{}", 10));
  CHECK_FALSE(format.config(path).has_value());
}

TEST_CASE("a format without a `write` of its own only reads") {
  const mh::Registry formats = mh::built_in_formats();
  CHECK_FALSE(formats.find(mh::Kind::checkpoint_format, "huggingface")->writes);
  CHECK(formats.find(mh::Kind::checkpoint_format, "native")->writes);

  struct Writes : mh::CheckpointFormat {
    struct Config {};

    static void fields(mh::Fields<Config>&) {}

    Writes(const Config&, const Args&) {}

    std::string about() const override { return "folder"; }

    std::string mark() const override { return "file"; }

    bool detect(const mh::Path&) const override { return false; }

    std::unique_ptr<mh::CheckpointReader>
    open(const mh::Path&, std::optional<int64_t>) const override {
      return nullptr;
    }

    void write(const mh::Path&, const mh::CheckpointContents&, const mh::Ranks&) const override {}
  };

  struct Inherits : Writes {
    using Writes::Writes;
  };

  mh::Registry own;
  own.add<Writes>("writes", "nothing");
  own.add<Inherits>("inherits", "what its base class does");
  CHECK(own.find(mh::Kind::checkpoint_format, "writes")->writes);
  CHECK(own.find(mh::Kind::checkpoint_format, "inherits")->writes);
}
