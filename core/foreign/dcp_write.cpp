#include "core/base/printable.hpp"
#include "core/checkpoint/checkpoint.hpp"
#include "core/checkpoint/format.hpp"
#include "core/foreign/dcp.hpp"
#include "core/formats/zip.hpp"
#include "core/mesh/collective_log.hpp"

#include <ATen/core/grad_mode.h>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <map>
#include <optional>

namespace mh {

namespace {

constexpr uint64_t kItemAlignment = 64; // as torch.save aligns what is in an item

std::string distcp_name(int64_t rank, size_t file) {
  return "__" + std::to_string(rank) + "_" + std::to_string(file) + ".distcp";
}

/// One file of items.
class DistcpFile {
public:
  DistcpFile(Storage& storage, const Path& path, Storage::Existing existing)
      : name_(path.filename().string())
      , upload_(storage.put(path, existing)) {}

  DcpPlace add(const at::Tensor& value) {
    const at::Tensor staged = value.detach().to(at::kCPU).contiguous();
    const auto bytes = mh::bytes_of(staged);
    const auto [before, after] =
        torch_envelope(dtype_of(staged.scalar_type()), staged.sizes().vec(), crc32(bytes));
    return add({std::as_bytes(std::span(before)), bytes, std::as_bytes(std::span(after))});
  }

  DcpPlace add_text(const std::string& text) {
    PickleWriter out;
    out.text(text);
    const std::string item = torch_file_of(out.finish());
    return add({std::as_bytes(std::span(item))});
  }

  void finish() { upload_->finish(); }

private:
  DcpPlace add(const std::vector<std::span<const std::byte>>& parts) {
    const std::string gap((kItemAlignment - at_ % kItemAlignment) % kItemAlignment, '\0');
    upload_->write(std::as_bytes(std::span(gap)));
    at_ += gap.size();
    DcpPlace place{name_, at_, 0};
    for (const auto& part : parts) {
      upload_->write(part);
      at_ += part.size();
    }
    place.bytes = at_ - place.offset;
    return place;
  }

  std::string name_;
  std::unique_ptr<Upload> upload_;
  uint64_t at_ = 0;
};

/// The part of a checkpoint that one rank has written, as text for rank 0.
struct WrittenPart {
  DcpMetadata metadata;

  [[nodiscard]] std::string text() const {
    nlohmann::json list = nlohmann::json::array();
    const auto row = [](const std::string& name, const DcpPlace& place) {
      return nlohmann::json{
          {"name", name}, {"file", place.file}, {"at", place.offset}, {"bytes", place.bytes}};
    };
    for (const DcpTensor& tensor : metadata.tensors) {
      for (const DcpChunk& chunk : tensor.chunks) {
        nlohmann::json one = row(tensor.name, chunk.place);
        one["dtype"] = dtype_name(tensor.dtype);
        one["whole"] = tensor.shape;
        one["offset"] = chunk.offset;
        one["shape"] = chunk.shape;
        list.push_back(std::move(one));
      }
    }
    for (const DcpObject& object : metadata.objects) {
      list.push_back(row(object.name, object.place));
    }
    return list.dump();
  }
};

bool by_offset(const DcpChunk& a, const DcpChunk& b) {
  return a.offset < b.offset;
}

/// The metadata of all ranks' parts.
DcpMetadata merged(const std::vector<std::string>& parts) {
  DcpMetadata metadata;
  std::map<std::string, DcpTensor> tensors;
  for (const std::string& part : parts) {
    for (const nlohmann::json& one : nlohmann::json::parse(part)) {
      const std::string name = one.at("name");
      const DcpPlace place{one.at("file"), one.at("at"), one.at("bytes")};
      if (!one.contains("dtype")) {
        metadata.objects.push_back({name, place});
        continue;
      }
      const auto dtype = dtype_from_name(one.at("dtype").get<std::string>());
      DcpTensor& tensor =
          tensors.try_emplace(name, DcpTensor{name, *dtype, one.at("whole"), {}}).first->second;
      tensor.chunks.push_back({one.at("offset"), one.at("shape"), place});
    }
  }
  for (auto& [name, tensor] : tensors) {
    std::sort(tensor.chunks.begin(), tensor.chunks.end(), by_offset);
    metadata.tensors.push_back(std::move(tensor));
  }
  return metadata;
}

/// Text of `.metadata`, once it is sure that readers take it.
std::string checked_text(const DcpMetadata& metadata) {
  std::string text = dcp_metadata_text(metadata);
  (void)read_dcp_metadata(text, kDcpMetadataName);
  return text;
}

WrittenPart write_dcp_part(
    Storage& storage,
    const Path& directory,
    std::span<const Slice> slices,
    const CheckpointContents& contents,
    int64_t rank
) {
  WrittenPart part;
  if (slices.empty() && rank != 0) {
    return part;
  }
  DistcpFile file(storage, directory / distcp_name(rank, 0), Storage::Existing::refuse);
  if (rank == 0) {
    part.metadata.objects.push_back({kDcpStateName, file.add_text(contents.state)});
  }
  for (const Slice& slice : slices) {
    DcpTensor tensor{slice.name, dtype_of(slice.local.scalar_type()), slice.global_shape, {}};
    tensor.chunks.push_back({slice.offset, slice.local.sizes().vec(), file.add(slice.local)});
    part.metadata.tensors.push_back(std::move(tensor));
  }
  file.finish();
  return part;
}

} // namespace

void DcpFormat::write(const Path& folder, const CheckpointContents& contents, const Ranks& ranks)
    const {
  const at::NoGradGuard no_grad;
  const bool leads = ranks.rank == 0;
  StepFolder steps(storage_, folder / kDcpSteps, kDcpMetadataName, contents.warn);
  try {
    const Path directory = together(ranks, [&]() -> std::string {
      if (leads) {
        steps.recover();
        return steps.begin(contents.step).string();
      }
      return "";
    })[0];
    std::vector<Slice> mine;
    for (const size_t i : slices_to_write(contents.slices, ranks)) {
      mine.push_back(contents.slices[i]);
    }
    const std::vector<std::string> parts = together(ranks, [&] {
      return write_dcp_part(storage_, directory, mine, contents, ranks.rank).text();
    });
    (void)together(ranks, [&]() -> std::string {
      if (leads) {
        steps.commit(contents.step, checked_text(merged(parts)));
      }
      return "";
    });
  } catch (const Error&) {
    if (leads) {
      steps.abandon(contents.step);
    }
    throw;
  }
}

void DcpFormat::remove(const Path& folder, int64_t step) const {
  steps_in(folder).remove(step);
}

uint64_t write_dcp_tensors(
    Storage& storage,
    const Path& directory,
    const OutlinedTensors& tensors,
    const std::string& state,
    const std::function<std::vector<DcpBox>(const TensorOutline&)>& places
) {
  const at::NoGradGuard no_grad;
  DcpMetadata metadata;
  std::map<std::string, DcpTensor> stored;
  uint64_t done = 0;
  const auto files = tensors.files();
  for (size_t i = 0; i < files.size(); ++i) {
    DistcpFile file(storage, directory / distcp_name(0, i), Storage::Existing::replace);
    if (i == 0 && !state.empty()) {
      metadata.objects.push_back({kDcpStateName, file.add_text(state)});
    }
    for (const TensorOutline& outline : files[i]) {
      const std::vector<int64_t> origin(outline.shape.size());
      const std::vector<DcpBox> boxes =
          places ? places(outline)
                 : std::vector<DcpBox>{{outline.name, outline.shape, origin, outline.shape}};
      const at::Tensor value = tensors.value(outline.name).reshape(boxes.front().shape);
      const DcpPlace place = file.add(value);
      for (const DcpBox& box : boxes) {
        DcpTensor& tensor =
            stored
                .try_emplace(box.name, DcpTensor{box.name, dtype_of(outline.dtype), box.whole, {}})
                .first->second;
        tensor.chunks.push_back({box.offset, box.shape, place});
      }
      tensors.progress(done += value.nbytes());
    }
    file.finish();
  }
  for (auto& [name, tensor] : stored) {
    std::sort(tensor.chunks.begin(), tensor.chunks.end(), by_offset);
    metadata.tensors.push_back(std::move(tensor));
  }
  put_text(storage, directory / kDcpMetadataName, checked_text(metadata));
  return done;
}

} // namespace mh
