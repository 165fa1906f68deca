#include "core/checkpoint/hf.hpp"

#include "core/checkpoint/tensors.hpp"
#include "core/storage/local.hpp"
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

  Folder() {
    std::string name = (std::filesystem::temp_directory_path() / "megahost-hf-XXXXXX").string();
    path = mkdtemp(name.data());
  }

  ~Folder() { mh::remove_tree(disk, path); }

  std::string why() {
    return refusal([this] { HfFolder folder(path); });
  }
};

} // namespace

TEST_CASE_FIXTURE(Folder, "a single file") {
  const at::Tensor a = counting({3, 2}, 1);
  (void)mh::write_tensors(
      disk, path / "model.safetensors", {{"b", counting({2}, 9, at::kBFloat16)}, {"a", a}}
  );
  mh::write_file(disk, path / "config.json", R"({"model_type": "llama"})");
  CHECK(mh::is_hf_folder(path));
  at::Tensor kept;
  {
    const HfFolder folder(path);
    CHECK(folder.names() == std::vector<std::string>{"a", "b"});
    CHECK(folder.config()["model_type"] == "llama");
    CHECK(folder.find("a")->shape == std::vector<int64_t>{3, 2});
    CHECK(folder.find("c") == nullptr);
    CHECK(folder.tensor("b").equal(counting({2}, 9, at::kBFloat16)));
    CHECK(contains(refusal([&] { (void)folder.tensor("c"); }), "there is no tensor \"c\""));
    kept = folder.tensor("a");
    CHECK(folder.tensor("a").data_ptr() == kept.data_ptr()); // no copy
  }
  CHECK(kept.equal(a));
  kept.zero_();
  CHECK(HfFolder(path).tensor("a").equal(a));
}

TEST_CASE_FIXTURE(Folder, "a tensor that is not aligned is copied") {
  const std::string json = R"({"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})";
  std::string bytes{static_cast<char>(json.size()), 0, 0, 0, 0, 0, 0, 0};
  REQUIRE((8 + json.size()) % 4 != 0);
  const at::Tensor value = counting({2}, 1);
  bytes += json + std::string(static_cast<const char*>(value.data_ptr()), 8);
  mh::write_file(disk, path / "model.safetensors", bytes);
  CHECK(HfFolder(path).tensor("w").equal(value));
}

TEST_CASE_FIXTURE(Folder, "several files with an index") {
  (void)mh::write_tensors(disk, path / "1.safetensors", {{"a", counting({2}, 1)}});
  (void)mh::write_tensors(disk, path / "2.safetensors", {{"b", counting({2}, 2)}});
  const Path index = path / "model.safetensors.index.json";
  mh::write_file(disk, index, R"({"weight_map": {"a": "1.safetensors", "b": "2.safetensors"}})");
  CHECK(HfFolder(path).tensor("b").equal(counting({2}, 2)));
  mh::replace_file(disk, index, R"({"weight_map": {"a": "1.safetensors", "b": "1.safetensors"}})");
  CHECK(contains(why(), "tensor \"b\" is not in \"1.safetensors\""));
  mh::replace_file(disk, index, R"({"weight_map": {"a": "1.safetensors", "b": "3.safetensors"}})");
  CHECK(contains(why(), "3.safetensors: No such file or directory"));
  mh::replace_file(disk, index, R"({"weight_map": {"a": "../1.safetensors"}})");
  CHECK(contains(why(), "no bare file name"));
}

TEST_CASE_FIXTURE(Folder, "what is no model") {
  CHECK_FALSE(mh::is_hf_folder(path));
  CHECK(contains(why(), "neither model.safetensors nor model.safetensors.index.json"));
  mh::write_file(disk, path / "model.safetensors", "");
  CHECK(contains(why(), "only 0 bytes"));
  mh::replace_file(disk, path / "model.safetensors", "12345678{}");
  CHECK(contains(why(), "model.safetensors: the header claims"));
  mh::replace_file(disk, path / "model.safetensors", std::string("\2\0\0\0\0\0\0\0{}", 10));
  CHECK(contains(refusal([this] { (void)HfFolder(path).config(); }), "config.json: No such file"));
}
