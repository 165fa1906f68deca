#include "core/formats/manifest.hpp"

#include "core/base/printable.hpp"
#include "core/formats/crc32c.hpp"
#include "core/formats/json.hpp"
#include "megahost/error.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

namespace mh {

namespace {

using nlohmann::json;
using nlohmann::ordered_json; // for people who read the file

constexpr const char* kFormat = "megahost.checkpoint";
constexpr int64_t kVersion = 1;
constexpr std::string_view kTail = ",\n\"crc32c\":\"00000000\"}\n";
constexpr size_t kTailCrc = 12; // where its digits start

[[noreturn]] void refuse(const std::string& file, const std::string& why) {
  throw Error(file + ": " + why, "the checkpoint is damaged: use another one", exit_code::data);
}

bool is_finite(const json& value) {
  if (value.is_structured()) {
    return std::all_of(value.begin(), value.end(), is_finite);
  }
  return !value.is_number_float() || std::isfinite(value.get<double>());
}

ordered_json to_json(const Chunk& chunk) {
  return {
      {"file", chunk.file},
      {"offset", chunk.offset},
      {"shape", chunk.shape},
      {"crc32c", crc_text(chunk.crc32c)},
  };
}

ordered_json to_json(const StoredFile& file) {
  return {{"name", file.name}, {"size", file.size}, {"crc32c", crc_text(file.crc32c)}};
}

ordered_json to_json(const StoredTensor& tensor) {
  ordered_json chunks = ordered_json::array();
  for (const Chunk& chunk : tensor.chunks) {
    chunks.push_back(to_json(chunk));
  }
  return {
      {"name", tensor.name},
      {"dtype", dtype_name(tensor.dtype)},
      {"shape", tensor.shape},
      {"chunks", std::move(chunks)},
  };
}

template <class Items>
std::string lines(const Items& items) {
  std::string text = "[";
  for (const auto& item : items) {
    text += (text == "[" ? "\n" : ",\n") + to_json(item).dump();
  }
  return text + "]";
}

std::vector<int64_t> read_sizes(const json& object, const char* key, const std::string& where) {
  const json& sizes = json_member(object, key, where);
  if (!sizes.is_array() || !std::all_of(sizes.begin(), sizes.end(), is_json_size)) {
    refuse(where, "`" + std::string(key) + "` is no array of integers from 0 to 2^63 - 1");
  }
  return sizes.get<std::vector<int64_t>>();
}

uint32_t read_crc(const json& object, const std::string& where) {
  const auto crc = crc_from_text(json_string(object, "crc32c", where));
  if (!crc) {
    refuse(where, "`crc32c` is no eight hexadecimal digits");
  }
  return *crc;
}

const json& read_array(const json& object, const char* key, const std::string& where) {
  const json& array = json_member(object, key, where);
  if (!array.is_array()) {
    refuse(where, "`" + std::string(key) + "` is no array");
  }
  return array;
}

StoredTensor
read_tensor(const json& entry, const std::set<std::string>& files, const std::string& file) {
  StoredTensor tensor;
  tensor.name = json_string(entry, "name", file);
  const std::string where = file + ": tensor " + printable(tensor.name);
  const std::string& dtype = json_string(entry, "dtype", where);
  const auto known = dtype_from_name(dtype);
  if (!known) {
    refuse(where, "unknown dtype " + printable(dtype));
  }
  tensor.dtype = *known;
  tensor.shape = read_sizes(entry, "shape", where);
  for (const json& item : read_array(entry, "chunks", where)) {
    Chunk chunk;
    chunk.file = json_string(item, "file", where);
    chunk.offset = read_sizes(item, "offset", where);
    chunk.shape = read_sizes(item, "shape", where);
    chunk.crc32c = read_crc(item, where);
    if (!files.contains(chunk.file)) {
      refuse(where, "its file " + printable(chunk.file) + " is not in `files`");
    }
    tensor.chunks.push_back(std::move(chunk));
  }
  return tensor;
}

bool overlap(const Chunk& a, const Chunk& b) {
  for (size_t d = 0; d < a.shape.size(); ++d) {
    if (a.offset[d] + a.shape[d] <= b.offset[d] || b.offset[d] + b.shape[d] <= a.offset[d]) {
      return false;
    }
  }
  return true;
}

bool inside(const Chunk& chunk, const std::vector<int64_t>& shape) {
  for (size_t d = 0; d < shape.size(); ++d) {
    if (chunk.offset[d] > shape[d] || chunk.shape[d] > shape[d] - chunk.offset[d]) {
      return false;
    }
  }
  return true;
}

std::string box(const Chunk& chunk) {
  return "the chunk of shape " + shape_text(chunk.shape) + " at " + shape_text(chunk.offset);
}

} // namespace

NewerVersion::~NewerVersion() = default;

const StoredTensor* Manifest::find(const std::string& name) const {
  const auto at = std::lower_bound(
      tensors.begin(),
      tensors.end(),
      name,
      [](const StoredTensor& tensor, const std::string& wanted) { return tensor.name < wanted; }
  );
  return at != tensors.end() && at->name == name ? &*at : nullptr;
}

std::string cover_problem(const StoredTensor& tensor) {
  const auto total = tensor_bytes(tensor.dtype, tensor.shape);
  if (!total) {
    return "shape " + shape_text(tensor.shape) + " of " + std::string(dtype_name(tensor.dtype)) +
           " is no whole number of bytes or overflows";
  }
  uint64_t covered = 0;
  for (size_t i = 0; i < tensor.chunks.size(); ++i) {
    const Chunk& chunk = tensor.chunks[i];
    const size_t rank = tensor.shape.size();
    if (chunk.shape.size() != rank || chunk.offset.size() != rank || !inside(chunk, tensor.shape)) {
      return box(chunk) + " is not within shape " + shape_text(tensor.shape);
    }
    const auto bytes = tensor_bytes(tensor.dtype, chunk.shape);
    if (!bytes || *bytes == 0) {
      return box(chunk) + " is empty";
    }
    for (size_t j = 0; j < i; ++j) {
      if (overlap(chunk, tensor.chunks[j])) {
        return box(chunk) + " overlaps " + box(tensor.chunks[j]);
      }
    }
    covered += *bytes;
  }
  if (covered != *total) {
    return "its chunks hold " + std::to_string(covered) + " of " + std::to_string(*total) +
           " bytes";
  }
  return "";
}

std::string manifest_text(Manifest manifest) {
  MH_ASSERT(is_finite(manifest.state), "the state of a checkpoint has finite numbers only");
  const auto by_name = [](const auto& a, const auto& b) { return a.name < b.name; };
  std::sort(manifest.files.begin(), manifest.files.end(), by_name);
  std::sort(manifest.tensors.begin(), manifest.tensors.end(), by_name);
  for (StoredTensor& tensor : manifest.tensors) {
    std::sort(tensor.chunks.begin(), tensor.chunks.end(), [](const Chunk& a, const Chunk& b) {
      return a.offset < b.offset;
    });
  }
  std::string text =
      "{\"format\":" + json(kFormat).dump() + ",\"version\":" + std::to_string(kVersion) +
      ",\"step\":" + std::to_string(manifest.step) + ",\n\"state\":" + manifest.state.dump() +
      ",\n\"files\":" + lines(manifest.files) + ",\n\"tensors\":" + lines(manifest.tensors);
  std::string tail(kTail);
  tail.replace(kTailCrc, 8, crc_text(crc32c(text)));
  return text + tail;
}

Manifest read_manifest(std::string_view text, const std::string& file, bool is_part) {
  const size_t body = text.size() - std::min(text.size(), kTail.size());
  std::string tail(text.substr(body));
  const auto crc =
      tail.size() == kTail.size() ? crc_from_text(tail.substr(kTailCrc, 8)) : std::nullopt;
  tail = crc ? tail.replace(kTailCrc, 8, "00000000") : "";
  if (tail != kTail) {
    refuse(file, "does not end in its checksum: it is cut short, or was edited");
  }
  if (crc32c(text.substr(0, body)) != *crc) {
    refuse(file, "its checksum does not match");
  }
  const json root = parse_json(text, file);
  if (json_string(root, "format", file) != kFormat) {
    refuse(
        file,
        "`format` is " + printable(json_string(root, "format", file)) + ", expected \"" + kFormat +
            "\""
    );
  }
  if (const int64_t version = json_size(root, "version", file); version != kVersion) {
    const std::string what =
        "version " + std::to_string(version) + ", expected " + std::to_string(kVersion);
    if (version < kVersion) {
      refuse(file, what);
    }
    throw NewerVersion(
        file + ": " + what, "use the megahost that wrote it, or a newer one", exit_code::data
    );
  }
  Manifest manifest;
  manifest.step = json_size(root, "step", file);
  manifest.state = json_member(root, "state", file);
  std::set<std::string> files;
  for (const json& entry : read_array(root, "files", file)) {
    StoredFile stored{json_string(entry, "name", file), 0, read_crc(entry, file)};
    stored.size = static_cast<uint64_t>(json_size(entry, "size", file));
    if (!is_file_name(stored.name)) {
      refuse(file, printable(stored.name) + " is no bare file name");
    }
    if (!files.insert(stored.name).second) {
      refuse(file, "the file " + printable(stored.name) + " is given twice");
    }
    manifest.files.push_back(std::move(stored));
  }
  for (const json& entry : read_array(root, "tensors", file)) {
    StoredTensor tensor = read_tensor(entry, files, file);
    if (const std::string problem = cover_problem(tensor); !problem.empty() && !is_part) {
      refuse(file, "tensor " + printable(tensor.name) + ": " + problem);
    }
    if (!manifest.tensors.empty() && manifest.tensors.back().name >= tensor.name) {
      refuse(file, "tensor " + printable(tensor.name) + " is given twice or out of order");
    }
    manifest.tensors.push_back(std::move(tensor));
  }
  return manifest;
}

Manifest merge_manifests(std::vector<Manifest> parts, bool whole) {
  MH_ASSERT(!parts.empty(), "no part of a manifest");
  Manifest merged{parts[0].step, std::move(parts[0].state), {}, {}};
  std::map<std::string, StoredTensor> tensors;
  for (Manifest& part : parts) {
    std::move(part.files.begin(), part.files.end(), std::back_inserter(merged.files));
    for (StoredTensor& tensor : part.tensors) {
      auto [at, is_new] = tensors.try_emplace(
          tensor.name, StoredTensor{tensor.name, tensor.dtype, tensor.shape, {}}
      );
      if (at->second.dtype != tensor.dtype || at->second.shape != tensor.shape) {
        throw Error(
            "checkpoint: ranks disagree about the shape or dtype of tensor " +
            printable(tensor.name)
        );
      }
      std::move(tensor.chunks.begin(), tensor.chunks.end(), std::back_inserter(at->second.chunks));
    }
  }
  for (auto& [name, tensor] : tensors) {
    if (const std::string problem = cover_problem(tensor); whole && !problem.empty()) {
      throw Error("checkpoint: tensor " + printable(name) + ": " + problem);
    }
    merged.tensors.push_back(std::move(tensor));
  }
  return merged;
}

} // namespace mh
