#include "core/foreign/dcp.hpp"

#include "core/base/printable.hpp"
#include "core/checkpoint/box.hpp"
#include "core/checkpoint/format.hpp"
#include "core/checkpoint/hf.hpp"
#include "core/foreign/torch_folder.hpp"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <map>
#include <string_view>
#include <tuple>

namespace mh {

namespace {

constexpr uint64_t kLongestMetadata = uint64_t{1} << 30;

[[noreturn]] void refuse_dcp(const std::string& where, const std::string& why) {
  throw Error(where + ": " + why, "the checkpoint is damaged: use another one", exit_code::data);
}

} // namespace

DcpFolder::DcpFolder(Storage& storage, Path directory)
    : storage_(storage)
    , directory_(std::move(directory))
    , held_(hold_step(directory_, kDcpMetadataName))
    , metadata_(read_dcp_metadata(
          get_text(storage, directory_ / kDcpMetadataName, kLongestMetadata),
          (directory_ / kDcpMetadataName).string()
      )) {
  for (const DcpObject& object : metadata_.objects) {
    if (object.name == kDcpStateName) {
      const TorchFile file = open(object.place, object.name);
      if (!file.root().is(PickleKind::text)) {
        refuse_dcp(file.file(), "it is no text");
      }
      state_ = file.root().text;
    }
  }
  const bool is_ours = names() == TensorNames::own;
  const bool tied =
      !is_ours && ties_embeddings(hf_config_text(storage, directory_), directory_.string());
  for (const DcpTensor& tensor : metadata_.tensors) {
    const bool is_weight =
        is_weight_name(tensor.name) && (is_ours || is_hf_weight(tensor.name, tied));
    tensors_.push_back({tensor.name, scalar_type(tensor.dtype), tensor.shape, is_weight});
  }
}

TensorNames DcpFolder::names() const {
  return state_.empty() ? TensorNames::hugging_face : TensorNames::own;
}

const CheckpointTensor* DcpFolder::find(std::string_view name) const {
  return names() == TensorNames::own ? CheckpointReader::find(name) : find_within(*this, name);
}

std::vector<StoredBox> DcpFolder::boxes() const {
  std::map<std::string_view, size_t> files;
  std::vector<StoredBox> boxes;
  for (size_t i = 0; i < metadata_.tensors.size(); ++i) {
    for (const DcpChunk& chunk : metadata_.tensors[i].chunks) {
      const size_t file = files.try_emplace(chunk.place.file, files.size()).first->second;
      boxes.push_back({i, chunk.offset, chunk.shape, file});
    }
  }
  std::stable_sort(boxes.begin(), boxes.end(), [](const StoredBox& a, const StoredBox& b) {
    return a.file < b.file;
  });
  return boxes;
}

TorchFile DcpFolder::open(const DcpPlace& place, const std::string& name) {
  const Path path = directory_ / place.file;
  if (open_.first != place.file || open_.second == nullptr) {
    open_ = {place.file, storage_.get(path)};
  }
  return open_torch_file(
      open_.second, path, "tensor " + printable(name), place.offset, place.bytes
  );
}

TorchTensor
DcpFolder::locate(const TorchFile& file, const DcpTensor& tensor, const DcpChunk& chunk) const {
  TorchTensor found = file.tensor(file.root());
  if (found.dtype != tensor.dtype || found.shape != chunk.shape) {
    refuse_dcp(
        file.file(),
        "it is " + std::string(torch_dtype_name(found.dtype)) + " " + shape_text(found.shape) +
            ", .metadata says " + std::string(torch_dtype_name(tensor.dtype)) + " " +
            shape_text(chunk.shape)
    );
  }
  return found;
}

void DcpFolder::read(std::span<const Slice> slices) {
  const at::NoGradGuard no_grad;

  struct Need {
    const Slice* slice;
    Box box; // box in the global tensor
  };

  struct Chunked {
    const DcpTensor* tensor;
    const DcpChunk* chunk;
    std::vector<Need> needs;
  };

  std::map<std::tuple<std::string_view, uint64_t, const DcpChunk*>, Chunked> wanted; // by place
  for (const Slice& slice : slices) {
    const CheckpointTensor& known = require_fit(*this, slice);
    const DcpTensor& tensor = metadata_.tensors[index_of(*this, known)];
    if (slice.local.numel() == 0) {
      continue;
    }
    for (const DcpChunk& chunk : tensor.chunks) {
      const Box box =
          Box{slice.offset, slice.local.sizes().vec()}.common({chunk.offset, chunk.shape});
      if (box.elements() > 0) {
        auto& one = wanted[{chunk.place.file, chunk.place.offset, &chunk}];
        one.tensor = &tensor;
        one.chunk = &chunk;
        one.needs.push_back({&slice, box});
      }
    }
  }
  for (const auto& [place, one] : wanted) {
    const TorchFile file = open(one.chunk->place, one.tensor->name);
    const TorchTensor tensor = locate(file, *one.tensor, *one.chunk);
    std::vector<int64_t> origin = one.chunk->offset;
    int64_t begin = 0, end = 0;
    for (const Need& need : one.needs) {
      if (!origin.empty()) {
        const int64_t first = need.box.offset[0] - one.chunk->offset[0];
        begin = &need == &one.needs.front() ? first : std::min(begin, first);
        end = std::max(end, first + need.box.shape[0]);
      }
    }
    const auto part_of = [](const Need& need) {
      return Box{need.slice->offset, need.slice->local.sizes().vec()}.cut(
          need.slice->local, need.box
      );
    };
    const at::Tensor only = one.needs.size() == 1 ? part_of(one.needs.front()) : at::Tensor();
    const at::Tensor rows = torch_rows(file, tensor, begin, end - begin, only);
    if (rows.is_same(only)) {
      continue;
    }
    if (!origin.empty()) {
      origin[0] += begin;
    }
    for (const Need& need : one.needs) {
      part_of(need).copy_(Box{origin, rows.sizes().vec()}.cut(rows, need.box));
    }
  }
}

Verification DcpFolder::verify(const std::function<void(uint64_t bytes)>& read) {
  Verification found{.checksums = true};
  const auto look = [&](const DcpPlace& place, const std::string& name, const auto& check) {
    try {
      const TorchFile file = open(place, name);
      check(file);
      for (std::string& damage : torch_damages(file, read)) {
        found.damages.push_back(std::move(damage));
      }
    } catch (const Error& error) {
      found.damages.emplace_back(error.what());
    }
  };
  for (const DcpTensor& tensor : metadata_.tensors) {
    for (const DcpChunk& chunk : tensor.chunks) {
      look(chunk.place, tensor.name, [&](const TorchFile& file) {
        (void)locate(file, tensor, chunk);
      });
    }
  }
  for (const DcpObject& object : metadata_.objects) {
    look(object.place, object.name, [](const TorchFile&) {});
  }
  return found;
}

StepFolder DcpFormat::steps_in(const Path& folder, const StepFolder::Warn& warn) const {
  return {storage_, folder / kDcpSteps, kDcpMetadataName, warn};
}

std::optional<std::string> DcpFormat::config(const Path& folder) const {
  return hf_config_text(storage_, folder);
}

Path DcpFormat::place(const Path& folder) const {
  return storage_.contains(folder / kDcpMetadataName) ? folder : folder / kDcpSteps;
}

bool DcpFormat::detect(const Path& folder) const {
  return (storage_.contains(folder / kDcpMetadataName) &&
          !storage_.contains(folder / kTorchDistMark) &&
          !storage_.contains(folder / kTorchDistCommon)) || // one that is not whole
         !storage_.list(folder / kDcpSteps).empty();
}

std::optional<std::vector<int64_t>> DcpFormat::steps(const Path& folder) const {
  return storage_.contains(folder / kDcpMetadataName) ? std::nullopt
                                                      : std::optional(steps_in(folder).steps());
}

std::unique_ptr<CheckpointReader>
DcpFormat::open(const Path& folder, std::optional<int64_t> step) const {
  return std::make_unique<DcpFolder>(storage_, step ? steps_in(folder).path(*step) : folder);
}

void DcpFormat::recover(const Path& folder, const std::function<void(const std::string&)>& warn)
    const {
  steps_in(folder, warn).recover();
}

} // namespace mh
