#include "core/base/printable.hpp"
#include "core/checkpoint/checkpoint.hpp"
#include "core/formats/json.hpp"

#include <algorithm>
#include <cstdio>

namespace mh {

namespace {

using nlohmann::json;

/// A slice as text, the same on each rank that holds it.
std::string key_of(const Slice& slice) {
  return json{slice.name, slice.offset, slice.local.sizes().vec()}.dump();
}

/// Slices for one file each: a name only once per file.
std::vector<std::vector<const Slice*>> files_of(std::span<const Slice> slices) {
  std::vector<std::vector<const Slice*>> files;
  std::map<std::string, size_t> seen;
  for (const Slice& slice : slices) {
    const size_t file = seen[slice.name]++;
    files.resize(std::max(files.size(), file + 1));
    files[file].push_back(&slice);
  }
  return files;
}

/// Named and described as torch.distributed.checkpoint's HuggingFaceStorageReader expects them, so
/// that PyTorch reads the files too.
std::string file_name(int64_t rank, size_t file, size_t files) {
  char name[80];
  std::snprintf(
      name,
      sizeof name,
      "shard-%05d-model-%05d-of-%05d.safetensors",
      static_cast<int>(rank + 1),
      static_cast<int>(file + 1),
      static_cast<int>(files)
  );
  return name;
}

std::map<std::string, std::string> metadata_of(const std::vector<const Slice*>& slices) {
  json offsets = json::object();
  for (const Slice* slice : slices) {
    offsets[slice->name]["saved_offsets"] = slice->offset;
  }
  return {{"DCP_SHARDING_INFO", offsets.dump()}, {"DCP_VERSION", "1.0"}, {"format", "pt"}};
}

} // namespace

Manifest
write_part(Storage& storage, const Path& directory, std::span<const Slice> slices, int64_t rank) {
  Manifest part;
  std::map<std::string, StoredTensor> by_name;
  const auto files = files_of(slices);
  for (size_t i = 0; i < files.size(); ++i) {
    std::vector<NamedTensor> tensors;
    for (const Slice* slice : files[i]) {
      tensors.push_back({slice->name, slice->local});
    }
    const std::string name = file_name(rank, i, files.size());
    WrittenTensors written =
        write_tensors(storage, directory / name, tensors, metadata_of(files[i]));
    part.files.push_back(written.file);
    for (const Slice* slice : files[i]) {
      const Dtype dtype = dtype_of(slice->local.scalar_type());
      StoredTensor stored{slice->name, dtype, slice->global_shape, {}};
      by_name.try_emplace(slice->name, std::move(stored))
          .first->second.chunks.push_back(
              {name, slice->offset, slice->local.sizes().vec(), written.crc32c[slice->name]}
          );
    }
  }
  for (auto& [name, tensor] : by_name) {
    part.tensors.push_back(std::move(tensor));
  }
  return part;
}

std::vector<size_t> slices_to_write(std::span<const Slice> slices, const Ranks& ranks) {
  const std::vector<std::string> lists = together(ranks, [slices] {
    json list = json::array();
    for (const Slice& slice : slices) {
      list.push_back({key_of(slice), slice.local.nbytes()});
    }
    return list.dump();
  });

  struct Held {
    uint64_t bytes = 0;
    std::vector<size_t> ranks;
  };

  std::map<std::string, Held> held;
  for (size_t rank = 0; rank < lists.size(); ++rank) {
    for (const json& item : json::parse(lists[rank])) {
      Held& one = held[item[0]];
      one.bytes = item[1];
      one.ranks.push_back(rank);
    }
  }
  std::vector<uint64_t> load(lists.size());
  std::map<std::string, size_t> writer;
  for (const auto& [key, one] : held) {
    const size_t least =
        *std::min_element(one.ranks.begin(), one.ranks.end(), [&load](size_t a, size_t b) {
          return load[a] < load[b];
        });
    load[least] += one.bytes;
    writer[key] = least;
  }
  std::vector<size_t> mine;
  for (size_t i = 0; i < slices.size(); ++i) {
    const auto at = writer.find(key_of(slices[i]));
    if (slices[i].local.numel() > 0 && at != writer.end() &&
        at->second == static_cast<size_t>(ranks.rank)) {
      mine.push_back(i);
      writer.erase(at);
    }
  }
  return mine;
}

void write_checkpoint(
    Storage& storage,
    StepFolder& folder,
    int64_t step,
    const json& state,
    std::span<const Slice> slices,
    const Ranks& ranks
) {
  const bool leads = ranks.rank == 0;
  try {
    const Path directory = together(ranks, [&]() -> std::string {
      return leads ? folder.begin(step).string() : "";
    })[0];
    std::vector<Slice> mine;
    for (const size_t i : slices_to_write(slices, ranks)) {
      mine.push_back(slices[i]);
    }
    const std::vector<std::string> parts = together(ranks, [&] {
      return manifest_text(write_part(storage, directory, mine, ranks.rank));
    });
    (void)together(ranks, [&]() -> std::string {
      if (leads) {
        std::vector<Manifest> read;
        for (size_t rank = 0; rank < parts.size(); ++rank) {
          read.push_back(read_manifest(parts[rank], "rank " + std::to_string(rank), true));
        }
        Manifest whole = merge_manifests(std::move(read));
        whole.step = step;
        whole.state = state;
        folder.commit(step, manifest_text(std::move(whole)));
      }
      return "";
    });
  } catch (const Error&) {
    if (leads) {
      folder.abandon(step);
    }
    throw;
  }
}

} // namespace mh
