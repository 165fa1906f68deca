#include "core/checkpoint/checkpoint.hpp"

#include "core/base/printable.hpp"
#include "core/checkpoint/box.hpp"
#include "core/checkpoint/format.hpp"
#include "core/formats/crc32c.hpp"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <map>
#include <string_view>

namespace mh {

namespace {

constexpr uint64_t kLongestManifest = 1ULL << 30;
constexpr const char* kChanged = " does not match its checksum";

constexpr const char* kUseAnother = "the checkpoint is damaged: use another one";

[[noreturn]] void refuse(const Path& path, const std::string& why) {
  throw Error(path.string() + ": " + why, kUseAnother, exit_code::data);
}

std::string of(const std::string& name) {
  return "tensor " + printable(name);
}

/// Whether it is a weight: `Weights::stored` and the scales of fp8 have prefixes of their own.
bool is_weight(const std::string& tensor) {
  return !tensor.starts_with("optimizer.") && !tensor.starts_with("fp8.");
}

} // namespace

/// A part of a chunk that goes into a part of a slice.
struct Checkpoint::Need {
  const Slice* slice;
  Box box; ///< box in the global tensor
};

Checkpoint::Checkpoint(Storage& storage, Path directory, bool is_part)
    : storage_(storage)
    , directory_(std::move(directory))
    , held_(hold_step(directory_, kManifestName))
    , manifest_(read_manifest(
          get_text(storage, directory_ / kManifestName, kLongestManifest),
          (directory_ / kManifestName).string(),
          is_part
      )) {
  for (const StoredTensor& tensor : manifest_.tensors) {
    tensors_.push_back(
        {tensor.name, scalar_type(tensor.dtype), tensor.shape, is_weight(tensor.name)}
    );
  }
}

std::vector<StoredBox> Checkpoint::boxes() const {
  std::map<std::string_view, size_t> files;
  for (size_t file = 0; file < manifest_.files.size(); ++file) {
    files.emplace(manifest_.files[file].name, file);
  }
  std::vector<StoredBox> boxes;
  for (size_t i = 0; i < manifest_.tensors.size(); ++i) { // sorted as tensors_ are
    for (const Chunk& chunk : manifest_.tensors[i].chunks) {
      if (const auto found = files.find(chunk.file); found != files.end()) {
        boxes.push_back({i, chunk.offset, chunk.shape, found->second});
      }
    }
  }
  std::stable_sort(boxes.begin(), boxes.end(), [](const StoredBox& a, const StoredBox& b) {
    return a.file < b.file;
  });
  return boxes;
}

const TensorFile& Checkpoint::open(const StoredFile& stored) {
  const Path path = directory_ / stored.name;
  if (open_ && open_->path() == path) {
    return *open_;
  }
  open_.reset();
  auto file = storage_.get(path);
  const uint64_t size = file->size();
  if (size != stored.size) {
    refuse(
        path,
        std::to_string(size) + " bytes, expected " + std::to_string(stored.size) +
            (size < stored.size ? ": it is cut short" : "")
    );
  }
  return open_.emplace(std::move(file), path);
}

const TensorInfo&
Checkpoint::locate(const TensorFile& file, const StoredTensor& tensor, const Chunk& chunk) const {
  const TensorInfo* info = file.header().find(tensor.name);
  if (info == nullptr) {
    refuse(file.path(), of(tensor.name) + " is not in it, though the manifest says so");
  }
  if (info->dtype != tensor.dtype || info->shape != chunk.shape) {
    refuse(
        file.path(),
        of(tensor.name) + " is " + std::string(dtype_name(info->dtype)) + " " +
            shape_text(info->shape) + ", the manifest says " +
            std::string(dtype_name(tensor.dtype)) + " " + shape_text(chunk.shape)
    );
  }
  return *info;
}

Verification Checkpoint::verify(const std::function<void(uint64_t bytes)>& read) {
  std::map<std::string, std::map<std::string, Place>> in_file;
  for (const StoredTensor& tensor : manifest_.tensors) {
    for (const Chunk& chunk : tensor.chunks) {
      in_file[chunk.file][tensor.name] = {&tensor, &chunk};
    }
  }
  Verification found{.checksums = true};
  for (const StoredFile& stored : manifest_.files) {
    try {
      verify_file(open(stored), stored, in_file[stored.name], read, found.damages);
    } catch (const Error& error) { // the rest of the file cannot be read
      found.damages.emplace_back(error.what());
    }
  }
  return found;
}

void Checkpoint::verify_file(
    const TensorFile& file,
    const StoredFile& stored,
    const std::map<std::string, Place>& listed,
    const std::function<void(uint64_t bytes)>& read,
    std::vector<std::string>& ret_damages
) const {
  for (const auto& [name, place] : listed) {
    (void)locate(file, *place.first, *place.second);
  }
  const size_t before = ret_damages.size();
  uint32_t file_sum = crc32c(file.header().header);
  for (const TensorInfo& info : file.header().tensors) {
    uint32_t sum = 0;
    file.visit(info, [&](std::span<const std::byte> block) {
      sum = crc32c(block, sum);
      read(block.size());
    });
    file_sum = crc32c_joined(file_sum, sum, info.bytes);
    const auto place = listed.find(info.name);
    if (place == listed.end()) {
      ret_damages.push_back(
          file.path().string() + ": " + of(info.name) + " is not in the manifest"
      );
    } else if (sum != place->second.second->crc32c) {
      const Chunk& chunk = *place->second.second;
      ret_damages.push_back(
          file.path().string() + ": " + of(info.name) + ", its block " + shape_text(chunk.shape) +
          " at " + shape_text(chunk.offset) + ", bytes " + std::to_string(info.offset) + " to " +
          std::to_string(info.offset + info.bytes) + " of the file," + kChanged
      );
    }
  }
  if (file_sum != stored.crc32c && ret_damages.size() == before) {
    ret_damages.push_back(file.path().string() + ": the header" + kChanged);
  }
}

void Checkpoint::require_whole() {
  const Verification found = verify([](uint64_t) {});
  if (!found.damages.empty()) {
    throw Error(found.damages.front(), kUseAnother, exit_code::data);
  }
}

std::map<std::string, std::map<Checkpoint::Place, std::vector<Checkpoint::Need>>>
Checkpoint::needs(std::span<const Slice> slices, OtherDtype other) const {
  std::map<std::string, std::map<Place, std::vector<Need>>> by_file;
  for (const Slice& slice : slices) {
    if (slice.local.numel() == 0) {
      continue;
    }
    const at::ScalarType saved = require_fit(*this, slice).dtype;
    if (saved != slice.local.scalar_type() && other == OtherDtype::refuse) {
      refuse_misfit(
          directory_,
          of(slice.name) + " is " + std::string(dtype_name(dtype_of(saved))) + ", the model has " +
              std::string(dtype_name(dtype_of(slice.local.scalar_type())))
      );
    }
    const StoredTensor* tensor = manifest_.find(slice.name);
    int64_t found = 0;
    for (const Chunk& chunk : tensor->chunks) {
      Box box = Box{slice.offset, slice.local.sizes().vec()}.common({chunk.offset, chunk.shape});
      if (box.elements() > 0) {
        found += box.elements();
        by_file[chunk.file][{tensor, &chunk}].push_back({&slice, std::move(box)});
      }
    }
    if (found != slice.local.numel()) {
      refuse_misfit(
          directory_,
          of(slice.name) + ": " + std::to_string(found) + " of " +
              std::to_string(slice.local.numel()) + " values are in this part of the checkpoint"
      );
    }
  }
  return by_file;
}

void Checkpoint::load(std::span<const Slice> slices, OtherDtype other) {
  const at::NoGradGuard no_grad;
  const auto wanted = needs(slices, other);
  for (const StoredFile& stored : manifest_.files) {
    const auto chunks = wanted.find(stored.name);
    if (chunks == wanted.end()) {
      continue;
    }
    const TensorFile& file = open(stored);
    std::map<uint64_t, std::pair<const TensorInfo*, Place>> in_order; // by the offset in the file
    for (const auto& [place, users] : chunks->second) {
      const TensorInfo& info = locate(file, *place.first, *place.second);
      in_order[info.offset] = {&info, place};
    }
    for (const auto& [offset, one] : in_order) {
      const auto& [info, place] = one;
      const auto& [tensor, chunk] = place;
      const auto& users = chunks->second.at(place);
      const auto part_of = [](const Need& need) {
        return Box{need.slice->offset, need.slice->local.sizes().vec()}.cut(
            need.slice->local, need.box
        );
      };
      const at::Tensor only = users.size() == 1 ? part_of(users.front()) : at::Tensor();
      const at::Tensor read = file.read(*info, only);
      if (crc32c(bytes_of(read)) != chunk->crc32c) {
        refuse(file.path(), of(tensor->name) + kChanged);
      }
      for (const Need& need : users) {
        if (!read.is_same(only)) {
          part_of(need).copy_(Box{chunk->offset, chunk->shape}.cut(read, need.box));
        }
      }
    }
  }
}

at::Tensor Checkpoint::tensor(const std::string& name) {
  return whole_tensor(*this, name);
}

StepFolder::Verify whole_checkpoint(Storage& storage) {
  return [&storage](const Path& directory) { Checkpoint(storage, directory).require_whole(); };
}

} // namespace mh
