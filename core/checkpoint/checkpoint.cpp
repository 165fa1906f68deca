#include "core/checkpoint/checkpoint.hpp"

#include "core/formats/crc32c.hpp"
#include "core/formats/printable.hpp"
#include "core/mesh/collective_log.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <exception>
#include <set>

namespace mh {

namespace {

constexpr uint64_t kLongestManifest = 1ULL << 30;
constexpr const char* kChanged = " does not match its checksum";

[[noreturn]] void refuse(const Path& path, const std::string& why) {
  throw Error(
      path.string() + ": " + why, "the checkpoint is damaged: use another one", exit_code::data
  );
}

[[noreturn]] void mismatch(const Path& path, const std::string& why) {
  throw Error(
      path.string() + ": " + why,
      "resume with the recipe that the checkpoint was made with",
      exit_code::data
  );
}

std::string of(const std::string& name) {
  return "tensor " + printable(name);
}

} // namespace

/// A part of a chunk that goes into a part of a slice.
struct Checkpoint::Need {
  const StoredTensor* tensor;
  const Chunk* chunk;
  const Slice* slice;

  /// The same box of the global tensor, in a tensor that starts at `offset`.
  [[nodiscard]] at::Tensor cut(at::Tensor value, const std::vector<int64_t>& offset) const {
    for (size_t d = 0; d < offset.size(); ++d) {
      const auto dim = static_cast<int64_t>(d);
      const int64_t begin = std::max(chunk->offset[d], slice->offset[d]);
      const int64_t end =
          std::min(chunk->offset[d] + chunk->shape[d], slice->offset[d] + slice->local.size(dim));
      value = value.narrow(dim, begin - offset[d], end - begin);
    }
    return value;
  }

  [[nodiscard]] bool is_empty() const {
    for (size_t d = 0; d < chunk->shape.size(); ++d) {
      const int64_t begin = std::max(chunk->offset[d], slice->offset[d]);
      const int64_t size = slice->local.size(static_cast<int64_t>(d));
      if (begin >= std::min(chunk->offset[d] + chunk->shape[d], slice->offset[d] + size)) {
        return true;
      }
    }
    return false;
  }
};

Checkpoint::Checkpoint(Storage& storage, Path directory)
    : storage_(storage)
    , directory_(std::move(directory))
    , manifest_(read_manifest(
          read_file(storage, directory_ / kManifestName, kLongestManifest),
          (directory_ / kManifestName).string()
      )) {}

TensorFile Checkpoint::open(const std::string& file) const {
  const Path path = directory_ / file;
  const auto stored =
      std::find_if(manifest_.files.begin(), manifest_.files.end(), [&file](const StoredFile& one) {
        return one.name == file;
      });
  const uint64_t size = storage_.open(path)->size();
  if (size != stored->size) {
    refuse(
        path,
        std::to_string(size) + " bytes, expected " + std::to_string(stored->size) +
            (size < stored->size ? ": it is cut short" : "")
    );
  }
  return TensorFile(storage_, path);
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

void Checkpoint::verify() {
  std::map<std::string, std::map<std::string, std::pair<const StoredTensor*, const Chunk*>>>
      in_file;
  for (const StoredTensor& tensor : manifest_.tensors) {
    for (const Chunk& chunk : tensor.chunks) {
      in_file[chunk.file][tensor.name] = {&tensor, &chunk};
    }
  }
  for (const StoredFile& stored : manifest_.files) {
    const TensorFile file = open(stored.name);
    auto& listed = in_file[stored.name];
    for (const auto& [name, place] : listed) {
      (void)locate(file, *place.first, *place.second);
    }
    uint32_t file_sum = crc32c(file.header().header);
    for (const TensorInfo& info : file.header().tensors) {
      uint32_t sum = 0;
      file.visit(info, [&sum, &file_sum](std::span<const std::byte> block) {
        sum = crc32c(block, sum);
        file_sum = crc32c(block, file_sum);
      });
      const auto place = listed.find(info.name);
      if (place == listed.end()) {
        refuse(file.path(), of(info.name) + " is not in the manifest");
      }
      if (sum != place->second.second->crc32c) {
        refuse(file.path(), of(info.name) + kChanged);
      }
    }
    if (file_sum != stored.crc32c) {
      refuse(file.path(), "the header" + std::string(kChanged));
    }
  }
}

std::map<std::string, std::vector<Checkpoint::Need>>
Checkpoint::needs(const std::vector<Slice>& slices, OtherDtype other) const {
  std::map<std::string, std::vector<Need>> by_file;
  for (const Slice& slice : slices) {
    if (slice.local.numel() == 0) {
      continue;
    }
    const StoredTensor* tensor = manifest_.find(slice.name);
    if (tensor == nullptr) {
      mismatch(directory_, "there is no " + of(slice.name));
    }
    if (tensor->shape != slice.global_shape) {
      mismatch(
          directory_,
          of(slice.name) + " has shape " + shape_text(tensor->shape) + ", the model has " +
              shape_text(slice.global_shape)
      );
    }
    const Dtype dtype = dtype_of(slice.local.scalar_type());
    if (tensor->dtype != dtype && other == OtherDtype::refuse) {
      mismatch(
          directory_,
          of(slice.name) + " is " + std::string(dtype_name(tensor->dtype)) + ", the model has " +
              std::string(dtype_name(dtype))
      );
    }
    for (const Chunk& chunk : tensor->chunks) {
      const Need need{tensor, &chunk, &slice};
      if (!need.is_empty()) {
        by_file[chunk.file].push_back(need);
      }
    }
  }
  return by_file;
}

void Checkpoint::require_fit(const std::vector<Slice>& slices, OtherDtype other) const {
  (void)needs(slices, other);
}

std::vector<std::string>
Checkpoint::unused(const std::vector<Slice>& slices, const Ranks& ranks) const {
  std::set<std::string> asked;
  for (const Slice& slice : slices) {
    asked.insert(slice.name);
  }
  const auto marks = together(ranks, [&] {
    std::string mine;
    for (const StoredTensor& tensor : manifest_.tensors) {
      mine += asked.contains(tensor.name) ? 'x' : '.';
    }
    return mine;
  });
  std::vector<std::string> names;
  for (size_t i = 0; i < manifest_.tensors.size(); ++i) {
    if (std::none_of(marks.begin(), marks.end(), [i](const auto& mine) {
          return mine[i] == 'x';
        })) {
      names.push_back(manifest_.tensors[i].name);
    }
  }
  return names;
}

void Checkpoint::load(const std::vector<Slice>& slices, OtherDtype other) {
  const at::NoGradGuard no_grad;
  for (const auto& [name, wanted] : needs(slices, other)) {
    const TensorFile file = open(name);
    for (const Need& need : wanted) {
      const at::Tensor chunk = file.read(locate(file, *need.tensor, *need.chunk));
      if (crc32c(bytes_of(chunk)) != need.chunk->crc32c) {
        refuse(file.path(), of(need.tensor->name) + kChanged);
      }
      need.cut(need.slice->local, need.slice->offset).copy_(need.cut(chunk, need.chunk->offset));
    }
  }
}

at::Tensor Checkpoint::tensor(const std::string& name) {
  const StoredTensor* stored = manifest_.find(name);
  if (stored == nullptr) {
    mismatch(directory_, "there is no " + of(name));
  }
  Slice whole{name, stored->shape, std::vector<int64_t>(stored->shape.size()), {}};
  whole.local = at::empty(stored->shape, at::TensorOptions(scalar_type(stored->dtype)));
  load({whole});
  return whole.local;
}

std::optional<int64_t> load_newest(
    Storage& storage,
    const StepFolder& folder,
    const std::vector<int64_t>& steps,
    const std::function<void(Checkpoint&)>& judge,
    const std::function<void(Checkpoint&)>& load,
    const Ranks& ranks
) {
  const auto first = on_first(ranks, [&steps] { return nlohmann::json(steps).dump(); });
  std::exception_ptr refusal; // not because of damage
  const auto open_and_load = [&](const Path& path) {
    std::optional<Checkpoint> saved;
    together(ranks, [&] {
      saved.emplace(storage, path);
      return std::string();
    });
    try {
      judge(*saved);
    } catch (const Error&) {
      refusal = std::current_exception();
      return;
    }
    together(ranks, [&] {
      load(*saved);
      return std::string();
    });
  };
  const auto step = folder.newest(
      nlohmann::json::parse(first).get<std::vector<int64_t>>(),
      [&](const Path& path) {
        try {
          open_and_load(path);
        } catch (const CollectiveError&) { // a rank is lost: that says nothing of the checkpoint
          refusal = std::current_exception();
        }
      }
  );
  if (refusal) {
    std::rethrow_exception(refusal);
  }
  return step;
}

StepFolder::Verify whole_checkpoint(Storage& storage) {
  return [&storage](const Path& directory) { Checkpoint(storage, directory).verify(); };
}

} // namespace mh
