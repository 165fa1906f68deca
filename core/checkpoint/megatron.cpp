#include "core/checkpoint/megatron.hpp"

#include "core/base/printable.hpp"
#include "core/checkpoint/assembled.hpp"
#include "core/checkpoint/dcp.hpp"
#include "core/checkpoint/megatron_names.hpp"

#include <algorithm>
#include <charconv>
#include <map>
#include <utility>

namespace mh {

namespace {

constexpr const char* kCommon = "common.pt";
constexpr const char* kLatest = "latest_checkpointed_iteration.txt";
constexpr int64_t kMostEntries = 1 << 22; // stacked tensors, all together

std::string iteration_name(int64_t step) {
  const std::string digits = std::to_string(step);
  return "iter_" + std::string(digits.size() < 7 ? 7 - digits.size() : 0, '0') + digits;
}

[[noreturn]] void
refuse_torch_dist(const Path& folder, const std::string& tensor, const std::string& why) {
  throw Error(
      folder.string() + ": tensor " + printable(tensor) + ": " + why,
      "the checkpoint is damaged, or of another version of megatron-core",
      exit_code::data
  );
}

/// Puts the tensors of torch_dist together by the names of the state_dict.
class TorchDistTensors {
public:
  explicit TorchDistTensors(const CheckpointReader& stored)
      : stored_(stored) {
    for (size_t i = 0; i < stored.tensors().size(); ++i) {
      add(i, stored.tensors()[i]);
    }
  }

  [[nodiscard]] std::vector<AssembledTensor> take() {
    std::vector<AssembledTensor> all;
    for (auto& [name, one] : found_) {
      if (one.has_halves) {
        one.assembled.tensor.shape[0] *= 2;
      }
      all.push_back(std::move(one.assembled));
    }
    return all;
  }

private:
  struct Found {
    AssembledTensor assembled;
    bool has_halves = false;
  };

  void add(size_t source, const CheckpointTensor& tensor) {
    const MegatronName name = megatron_name(tensor.name);
    const size_t outer = name.stacked();
    if (tensor.name.ends_with("._extra_state")) {
      return;
    }
    if (tensor.shape.size() < outer || (name.half && tensor.shape.size() == outer)) {
      refuse_torch_dist(
          stored_.path(),
          tensor.name,
          "it has the shape " + shape_text(tensor.shape) + ", in which a dimension is missing"
      );
    }
    int64_t entries = 1;
    for (size_t d = 0; d < outer; ++d) {
      entries *= std::min(tensor.shape[d], kMostEntries + 1); // no product that overflows
      if (entries_ + entries > kMostEntries) {
        refuse_torch_dist(
            stored_.path(),
            tensor.name,
            "it has the shape " + shape_text(tensor.shape) + ", too many layers or experts"
        );
      }
    }
    entries_ += entries;
    std::vector<int64_t> indices(outer);
    for (int64_t i = 0; i < entries; ++i) {
      int64_t rest = i;
      for (size_t d = outer; d-- > 0;) {
        indices[d] = rest % tensor.shape[d];
        rest /= tensor.shape[d];
      }
      add_entry(source, tensor, name, indices);
    }
  }

  void add_entry(
      size_t source,
      const CheckpointTensor& tensor,
      const MegatronName& name,
      const std::vector<int64_t>& indices
  ) {
    const std::string text = name.at(indices);
    std::vector<int64_t> from(tensor.shape.size());
    std::copy(indices.begin(), indices.end(), from.begin());
    const std::vector<int64_t> shape(
        tensor.shape.begin() + static_cast<int64_t>(indices.size()), tensor.shape.end()
    );
    AssembledPart part{source, std::move(from), {std::vector<int64_t>(shape.size()), shape}};
    if (name.half == 1) {
      part.box.offset[0] = shape[0];
    }
    const auto [at, is_new] = found_.try_emplace(
        text,
        Found{
            {{text, tensor.dtype, shape, tensor.is_weight && !text.starts_with("optimizer.")}, {}},
            name.half.has_value()}
    );
    const AssembledTensor& other = at->second.assembled;
    if (!is_new && (!name.half || !at->second.has_halves || other.tensor.shape != shape ||
                    other.tensor.dtype != tensor.dtype || other.parts.size() > 1)) {
      refuse_torch_dist(stored_.path(), tensor.name, "there are two of " + printable(text));
    }
    at->second.assembled.parts.push_back(std::move(part));
  }

  const CheckpointReader& stored_;
  std::map<std::string, Found> found_;
  int64_t entries_ = 0;
};

std::string common_arguments(Storage& storage, const Path& folder) {
  const Path path = folder / kCommon;
  if (!storage.contains(path)) {
    return ""; // later versions have it within
  }
  std::shared_ptr<ReadFile> file = storage.get(path);
  const uint64_t size = file->size();
  return megatron_arguments(open_torch_file(std::move(file), path, "", 0, size).root());
}

/// The text that load_common of megatron-core reads: a dict without any class.
std::string common_text(int64_t iteration) {
  PickleWriter out;
  out.mark();
  out.text("iteration").integer(iteration);
  out.text("checkpoint_version").integer(3);
  out.text("num_floating_point_operations_so_far").integer(0);
  out.text("content_metadata").mark().dict();
  return torch_file_of(out.dict().finish());
}

} // namespace

std::vector<int64_t> IterationFormat::iterations(const Path& folder) const {
  std::vector<int64_t> steps;
  for (const Storage::Item& item : storage_.list(folder)) {
    int64_t step = 0;
    const char* end = item.name.data() + item.name.size();
    if (item.is_prefix && item.name.starts_with("iter_") &&
        std::from_chars(item.name.data() + 5, end, step).ec == std::errc() && step >= 0 &&
        item.name == iteration_name(step) && is_whole(folder / item.name)) {
      steps.push_back(step);
    }
  }
  std::sort(steps.rbegin(), steps.rend());
  return steps;
}

bool IterationFormat::detect(const Path& folder) const {
  return is_whole(folder) || !iterations(folder).empty();
}

std::optional<std::vector<int64_t>> IterationFormat::steps(const Path& folder) const {
  return is_whole(folder) ? std::nullopt : std::optional(iterations(folder));
}

std::unique_ptr<CheckpointReader>
IterationFormat::open(const Path& folder, std::optional<int64_t> step) const {
  return read(step ? folder / iteration_name(*step) : folder);
}

bool TorchDistFormat::is_whole(const Path& folder) const {
  return storage().contains(folder / kDcpMetadataName) &&
         storage().contains(folder / kTorchDistMark);
}

std::unique_ptr<CheckpointReader> TorchDistFormat::read(const Path& folder) const {
  return open_torch_dist(storage(), folder);
}

std::unique_ptr<CheckpointReader> open_torch_dist(Storage& storage, const Path& folder) {
  auto stored = std::make_unique<DcpFolder>(storage, folder);
  std::vector<AssembledTensor> tensors = TorchDistTensors(*stored).take();
  std::string arguments = common_arguments(storage, folder);
  return std::make_unique<AssembledReader>(
      std::move(stored), std::move(tensors), TensorNames::megatron, std::move(arguments)
  );
}

uint64_t write_torch_dist(
    Storage& storage, const Path& folder, int64_t iteration, const OutlinedTensors& tensors
) {
  std::vector<std::string> names;
  for (const TensorOutline& outline : tensors.outlines) {
    names.push_back(outline.name);
  }
  const auto places = torch_dist_places(names);
  const auto with_first = [](std::vector<int64_t> first, const std::vector<int64_t>& rest) {
    first.insert(first.end(), rest.begin(), rest.end());
    return first;
  };
  const Path directory = folder / iteration_name(iteration);
  const uint64_t bytes =
      write_dcp_tensors(storage, directory, tensors, "", [&](const TensorOutline& outline) {
        const MegatronPlace& place = places.at(outline.name);
        return DcpBox{
            place.name,
            with_first(place.all, outline.shape),
            with_first(place.at, std::vector<int64_t>(outline.shape.size())),
            with_first(std::vector<int64_t>(place.at.size(), 1), outline.shape)};
      });
  put_text(storage, directory / kCommon, common_text(iteration));
  put_text( // last: now it is whole
      storage,
      directory / kTorchDistMark,
      R"({"sharded_backend": "torch_dist", "sharded_backend_version": 1, )"
      R"("common_backend": "torch", "common_backend_version": 1})"
  );
  put_text(storage, folder / kLatest, std::to_string(iteration));
  return bytes;
}

} // namespace mh
