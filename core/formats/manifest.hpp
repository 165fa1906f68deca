#pragma once
/// `megahost.manifest.json`: what a checkpoint holds and where, with checksums.
///
///     {"format": "megahost.checkpoint", "version": 1, "step": 1000,
///     "state": {"samples": 64000, ...},
///     "files": [
///     {"name": "shard-00001-model-00001-of-00001.safetensors", "size": 123, "crc32c":
///     "0a1b2c3d"}], "tensors": [
///     {"name": "head.weight", "dtype": "F32", "shape": [100, 8], "chunks": [{"file": "shard-...",
///      "offset": [0, 0], "shape": [100, 8], "crc32c": "..."}]}],
///     "crc32c": "..."}
///
/// The last checksum is that of all bytes before its comma, so that any damage is found before
/// anything is read.

#include "core/formats/safetensors.hpp"
#include "megahost/error.hpp"

#include <nlohmann/json.hpp>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace mh {

inline constexpr const char* kManifestName = "megahost.manifest.json";

/// A box of a tensor that lies in one file, under the tensor's name.
struct Chunk {
  std::string file;
  std::vector<int64_t> offset; ///< in the global tensor
  std::vector<int64_t> shape;
  uint32_t crc32c = 0; ///< checksum of the chunk's bytes
};

struct StoredTensor {
  std::string name;
  Dtype dtype = Dtype::f32;
  std::vector<int64_t> shape; ///< shape of the global tensor
  std::vector<Chunk> chunks;
};

struct StoredFile {
  std::string name;
  uint64_t size = 0;
  uint32_t crc32c = 0;
};

struct Manifest {
  int64_t step = 0;
  nlohmann::json state = nlohmann::json::object(); ///< state of the run: whatever is no tensor
  std::vector<StoredFile> files;
  std::vector<StoredTensor> tensors;

  /// The tensor of this name, or nullptr.
  [[nodiscard]] const StoredTensor* find(const std::string& name) const;
};

/// A checkpoint that a newer megahost wrote: it may be whole, and only that one can say so.
class NewerVersion : public Error {
public:
  using Error::Error;
  ~NewerVersion() override;
};

/// The manifest's text; files, tensors and chunks are sorted, so that equal contents give equal
/// bytes.
///
/// Throws:  mh::InternalError if the state holds a number that is not finite: JSON has none
[[nodiscard]] std::string manifest_text(Manifest manifest);

/// Reads and checks a manifest: its checksum, its fields, that files are bare names given once,
/// and, unless it is one rank's part, that the chunks of each tensor cover it exactly. `file` names
/// it in messages.
///
/// Throws:  NewerVersion; mh::Error (exit code 5)
[[nodiscard]] Manifest
read_manifest(std::string_view text, const std::string& file, bool is_part = false);

/// One manifest of the parts that several ranks wrote; step and state are the first part's.
///
/// Throws:  mh::Error if the parts disagree about a tensor's shape or dtype, or if their chunks
/// together
///          do not cover a tensor exactly, unless they are not the `whole`
[[nodiscard]] Manifest merge_manifests(std::vector<Manifest> parts, bool whole = true);

/// Why the chunks do not cover the tensor exactly; "" if they do.
[[nodiscard]] std::string cover_problem(const StoredTensor& tensor);

} // namespace mh
