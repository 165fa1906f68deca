#pragma once
/// `.metadata` of a folder of torch.distributed.checkpoint: which tensors it holds, and where the
/// chunks of each lie. No LibTorch, and nothing of its pickle is run.
///
/// Each chunk is a file of torch.save (torch_file.hpp) within a larger one, of which the place is
/// said here; so is each object that is no tensor.
///
/// A file of megahost has a checksum of all its bytes, an attribute that PyTorch passes over. In one of
/// PyTorch the dtypes, shapes and places are compared with each other and with the items that lie
/// there: a changed name is that of another tensor, and a file that an earlier save left with the same
/// items is taken for the one whose name was changed to its.
///
/// Source:  torch/distributed/checkpoint/metadata.py, filesystem.py (PyTorch 2.11)

#include "core/formats/safetensors.hpp"

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace mh {

inline constexpr const char* kDcpMetadataName = ".metadata";

/// A file of torch.save in a larger one.
struct DcpPlace {
  std::string file; ///< a bare name
  uint64_t offset = 0, bytes = 0;
};

struct DcpChunk {
  std::vector<int64_t> offset, shape; ///< in the global tensor
  DcpPlace place;
};

struct DcpTensor {
  std::string name;
  Dtype dtype = Dtype::f32;
  std::vector<int64_t> shape;
  std::vector<DcpChunk> chunks;
};

struct DcpObject {
  std::string name;
  DcpPlace place;
};

struct DcpMetadata {
  std::vector<DcpTensor> tensors; ///< sorted by name
  std::vector<DcpObject> objects; ///< sorted by name
};

/// Reads and checks it. `file` names it in messages.
///
/// Throws:  mh::Error (exit code 5): a pickle that is refused; a class, dtype or layout that is not
///          read; chunks that do not cover their tensor exactly, lie nowhere, or in one another; a
///          file's name that is no bare one; a checksum that does not match
[[nodiscard]] DcpMetadata read_dcp_metadata(std::string bytes, const std::string& file);

/// The pickle that torch.distributed.checkpoint.load reads; equal contents give equal bytes.
[[nodiscard]] std::string dcp_metadata_text(const DcpMetadata& metadata);

} // namespace mh
