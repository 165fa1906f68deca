#include "core/checkpoint/outlined.hpp"

#include <cstdio>

namespace mh {

uint64_t OutlinedTensors::bytes() const {
  uint64_t all = 0;
  for (const TensorOutline& outline : outlines) {
    all += value_bytes(outline.dtype, outline.shape);
  }
  return all;
}

std::vector<std::vector<TensorOutline>> OutlinedTensors::files() const {
  std::vector<std::vector<TensorOutline>> files;
  uint64_t in_file = 0;
  for (const TensorOutline& outline : outlines) {
    const uint64_t bytes = value_bytes(outline.dtype, outline.shape);
    if (files.empty() || (in_file > 0 && in_file + bytes > file_bytes)) {
      files.emplace_back();
      in_file = 0;
    }
    in_file += bytes;
    files.back().push_back(outline);
  }
  return files;
}

namespace {

/// The name that `write_checkpoint` gives such a file if all are rank 0's.
std::string whole_file_name(size_t file, size_t files) {
  char name[80];
  std::snprintf(name, sizeof name, "shard-00001-model-%05zu-of-%05zu.safetensors", file + 1, files);
  return name;
}

} // namespace

void write_native_tensors(
    Storage& storage,
    StepFolder& folder,
    int64_t step,
    const nlohmann::json& state,
    const OutlinedTensors& tensors
) {
  const Path directory = folder.begin(step);
  try {
    Manifest manifest{.step = step, .state = state, .files = {}, .tensors = {}};
    uint64_t done = 0;
    const auto files = tensors.files();
    for (size_t i = 0; i < files.size(); ++i) {
      const std::string name = whole_file_name(i, files.size());
      nlohmann::json offsets = nlohmann::json::object();
      for (const TensorOutline& outline : files[i]) {
        offsets[outline.name]["saved_offsets"] = std::vector<int64_t>(outline.shape.size());
      }
      const WrittenTensors written = write_outlined(
          storage,
          directory / name,
          files[i],
          [&](const std::string& one) {
            at::Tensor value = tensors.value(one);
            tensors.progress(done += value.nbytes());
            return value;
          },
          {{"DCP_SHARDING_INFO", offsets.dump()}, {"DCP_VERSION", "1.0"}, {"format", "pt"}}
      );
      manifest.files.push_back(written.file);
      for (const TensorOutline& outline : files[i]) {
        const std::vector<int64_t> origin(outline.shape.size());
        manifest.tensors.push_back(
            {outline.name,
             dtype_of(outline.dtype),
             outline.shape,
             {{name, origin, outline.shape, written.crc32c.at(outline.name)}}}
        );
      }
    }
    folder.commit(step, manifest_text(std::move(manifest)));
  } catch (const Error&) {
    folder.abandon(step);
    throw;
  }
}

} // namespace mh
