#include "core/checkpoint/hf.hpp"

#include "core/checkpoint/tensors.hpp"
#include "core/formats/hf_index.hpp"
#include "core/formats/json.hpp"
#include "core/formats/printable.hpp"
#include "core/storage/local.hpp"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <cstdint>

namespace mh {

namespace {

constexpr const char* kSingle = "model.safetensors";
constexpr const char* kIndex = "model.safetensors.index.json";
constexpr uint64_t kLongestJson = 100 << 20;

} // namespace

bool is_hf_folder(const Path& folder) {
  LocalStorage disk;
  return disk.kind(folder / kIndex) != Storage::Kind::none ||
         disk.kind(folder / kSingle) != Storage::Kind::none;
}

HfFolder::HfFolder(const Path& folder)
    : folder_(folder) {
  LocalStorage disk;
  const Path index_path = folder / kIndex;
  if (disk.kind(index_path) != Storage::Kind::none) {
    const HfIndex index =
        read_hf_index(read_file(disk, index_path, kLongestJson), index_path.string());
    std::map<std::string, std::vector<std::string>> tensors_of;
    for (const std::string& file : index.files) {
      tensors_of[file] = add(file);
    }
    check_hf_index(index, tensors_of, index_path.string());
    return;
  }
  if (disk.kind(folder / kSingle) == Storage::Kind::none) {
    throw Error(
        folder.string() + ": neither " + kSingle + " nor " + kIndex,
        "give the folder of a model in safetensors format; for a pytorch_model.bin, load it in "
        "Python and "
        "save it with `save_pretrained(folder, safe_serialization=True)`",
        exit_code::data
    );
  }
  (void)add(kSingle);
}

std::vector<std::string> HfFolder::add(const std::string& file) {
  const Path path = folder_ / file;
  const auto mapped = std::make_shared<const MappedFile>(path);
  const std::span<const std::byte> bytes = mapped->bytes();
  const auto read = [bytes](uint64_t offset, std::span<std::byte> into) {
    std::copy_n(bytes.begin() + static_cast<int64_t>(offset), into.size(), into.begin());
  };
  std::vector<std::string> names;
  for (const TensorInfo& info : read_safetensors(read, bytes.size(), path.string()).tensors) {
    names.push_back(info.name);
    places_.try_emplace(info.name, Place{mapped, info});
  }
  return names;
}

nlohmann::json HfFolder::config() const {
  LocalStorage disk;
  const Path path = folder_ / "config.json";
  return parse_json(read_file(disk, path, kLongestJson), path.string());
}

std::vector<std::string> HfFolder::names() const {
  std::vector<std::string> names;
  for (const auto& [name, place] : places_) {
    names.push_back(name);
  }
  return names;
}

const TensorInfo* HfFolder::find(const std::string& name) const {
  const auto place = places_.find(name);
  return place == places_.end() ? nullptr : &place->second.info;
}

at::Tensor HfFolder::tensor(const std::string& name) const {
  const auto place = places_.find(name);
  if (place == places_.end()) {
    throw Error(
        folder_.string() + ": there is no tensor " + printable(name),
        "give a folder whose model has the recipe's architecture",
        exit_code::data
    );
  }
  const auto& [file, info] = place->second;
  const auto options = at::TensorOptions(scalar_type(info.dtype));
  const auto bytes = file->bytes().subspan(info.offset, info.bytes);
  const auto element = static_cast<uintptr_t>(dtype_bits(info.dtype) / 8);
  if (bytes.empty() || reinterpret_cast<uintptr_t>(bytes.data()) % element != 0) {
    at::Tensor copy = at::empty(info.shape, options);
    std::copy(bytes.begin(), bytes.end(), bytes_of(copy).begin());
    return copy;
  }
  const auto keep = [held = file](void*) {};
  return at::from_blob(bytes.data(), info.shape, keep, options);
}

} // namespace mh
