#include "core/checkpoint/format.hpp"

#include "core/base/printable.hpp"
#include "core/checkpoint/tensors.hpp"
#include "core/formats/safetensors.hpp"
#include "core/mesh/collective_log.hpp"

#include <ATen/ops/empty.h>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <exception>
#include <set>

namespace mh {

CheckpointReader::~CheckpointReader() = default;
CheckpointFormat::~CheckpointFormat() = default;

const CheckpointTensor* CheckpointReader::find(std::string_view name) const {
  const auto& all = tensors();
  const auto at = std::lower_bound(
      all.begin(),
      all.end(),
      name,
      [](const CheckpointTensor& tensor, std::string_view wanted) { return tensor.name < wanted; }
  );
  return at != all.end() && at->name == name ? &*at : nullptr;
}

std::vector<StoredBox> CheckpointReader::boxes() const {
  std::vector<StoredBox> boxes;
  for (size_t i = 0; i < tensors().size(); ++i) {
    const auto& shape = tensors()[i].shape;
    boxes.push_back({i, std::vector<int64_t>(shape.size()), shape, i});
  }
  return boxes;
}

Verification CheckpointReader::verify(const std::function<void(uint64_t bytes)>& read) {
  Verification found;
  for (const CheckpointTensor& tensor : tensors()) {
    try {
      read(whole_tensor(*this, tensor.name).nbytes());
    } catch (const Error& error) {
      found.damages.emplace_back(error.what());
    }
  }
  return found;
}

void CheckpointFormat::recover(const Path&, const std::function<void(const std::string&)>&) const {}

void CheckpointFormat::write(const Path& folder, const CheckpointContents&, const Ranks&) const {
  throw Error(
      folder.string() + " cannot be written as a " + about() + ": the format is only read",
      "name another in checkpoint.use",
      exit_code::data
  );
}

void CheckpointFormat::remove(const Path& folder, int64_t step) const {
  throw Error(
      "the checkpoint of step " + std::to_string(step) + " in " + folder.string() +
          " stays: the format of a " + about() + " removes none",
      "its plugin has no `remove`",
      exit_code::data
  );
}

[[noreturn]] void refuse_misfit(const Path& path, const std::string& why) {
  throw Error(
      path.string() + ": " + why,
      "use the recipe that it was made with; its section model says the sizes",
      exit_code::data
  );
}

std::string misfit(const CheckpointReader& saved, const Slice& slice) {
  const CheckpointTensor* tensor = saved.find(slice.name);
  const std::string name = "tensor " + printable(slice.name);
  if (tensor == nullptr) {
    return "there is no " + name;
  }
  return tensor->shape == slice.global_shape
             ? ""
             : name + " has shape " + shape_text(tensor->shape) + ", the model has " +
                   shape_text(slice.global_shape);
}

const CheckpointTensor& require_fit(const CheckpointReader& saved, const Slice& slice) {
  if (const std::string why = misfit(saved, slice); !why.empty()) {
    refuse_misfit(saved.path(), why);
  }
  return *saved.find(slice.name);
}

std::vector<std::string> misfit_tensors(
    const CheckpointReader& saved, const std::vector<Slice>& slices, const Ranks& ranks
) {
  const auto found = together(ranks, [&] {
    std::set<std::string> mine;
    for (const Slice& slice : slices) {
      if (!misfit(saved, slice).empty()) {
        mine.insert(slice.name);
      }
    }
    return nlohmann::json(mine).dump();
  });
  std::set<std::string> names;
  for (const std::string& mine : found) {
    names.merge(nlohmann::json::parse(mine).get<std::set<std::string>>());
  }
  return {names.begin(), names.end()};
}

std::vector<std::string> unused_tensors(
    const CheckpointReader& saved, const std::vector<Slice>& slices, const Ranks& ranks
) {
  std::set<const CheckpointTensor*> asked;
  for (const Slice& slice : slices) {
    asked.insert(saved.find(slice.name));
  }
  const auto marks = together(ranks, [&] {
    std::string mine;
    for (const CheckpointTensor& tensor : saved.tensors()) {
      mine += asked.contains(&tensor) ? 'x' : '.';
    }
    return mine;
  });
  std::vector<std::string> names;
  for (size_t i = 0; i < saved.tensors().size(); ++i) {
    if (std::none_of(marks.begin(), marks.end(), [i](const auto& mine) {
          return mine[i] == 'x';
        })) {
      names.push_back(saved.tensors()[i].name);
    }
  }
  return names;
}

size_t index_of(const CheckpointReader& saved, const CheckpointTensor& tensor) {
  return static_cast<size_t>(&tensor - saved.tensors().data());
}

std::vector<uint64_t>
bytes_to_read(const CheckpointReader& saved, std::optional<at::ScalarType> dtype) {
  std::vector<uint64_t> bytes = largest_boxes(saved);
  for (size_t i = 0; i < bytes.size(); ++i) {
    const CheckpointTensor& tensor = saved.tensors()[i];
    const bool is_cast =
        at::isFloatingType(tensor.dtype) && tensor.dtype != dtype.value_or(tensor.dtype);
    const bool is_whole = bytes[i] == value_bytes(tensor.dtype, tensor.shape);
    bytes[i] = is_whole && !is_cast ? 0 : bytes[i];
  }
  return bytes;
}

std::vector<uint64_t> largest_boxes(const CheckpointReader& saved) {
  std::vector<uint64_t> largest(saved.tensors().size());
  for (const StoredBox& box : saved.boxes()) {
    uint64_t& bytes = largest[box.tensor];
    bytes = std::max(bytes, value_bytes(saved.tensors()[box.tensor].dtype, box.shape));
  }
  return largest;
}

at::Tensor whole_tensor(CheckpointReader& saved, const std::string& name) {
  const CheckpointTensor* tensor = saved.find(name);
  if (tensor == nullptr) {
    refuse_misfit(saved.path(), "there is no tensor " + printable(name));
  }
  const Slice whole{
      name,
      tensor->shape,
      std::vector<int64_t>(tensor->shape.size()),
      at::empty(tensor->shape, at::TensorOptions(tensor->dtype))};
  saved.read({&whole, 1});
  return whole.local;
}

std::optional<int64_t> load_newest(
    const Path& root,
    const std::vector<int64_t>& steps,
    const LoadAttempt& attempt,
    const StepFolder::Warn& warn,
    const Ranks& ranks
) {
  const auto first = on_first(ranks, [&steps] { return nlohmann::json(steps).dump(); });
  std::exception_ptr refusal; // not because of damage
  const auto open_and_load = [&](int64_t step) {
    const auto newer = together(ranks, [&]() -> std::string { // is no damage, on any rank
      try {
        attempt.open(step);
        return "";
      } catch (const NewerVersion& error) {
        return nlohmann::json{error.what(), error.hint()}.dump();
      }
    });
    try {
      for (const std::string& said : newer) {
        if (!said.empty()) {
          const auto error = nlohmann::json::parse(said);
          throw Error(error[0], error[1], exit_code::data);
        }
      }
      attempt.judge();
    } catch (const Error&) {
      refusal = std::current_exception();
      return;
    }
    together(ranks, [&] {
      attempt.load();
      return std::string();
    });
  };
  const auto step = newest_step(
      root,
      nlohmann::json::parse(first).get<std::vector<int64_t>>(),
      [&](int64_t candidate) {
        try {
          open_and_load(candidate);
        } catch (const CollectiveError&) { // a rank is lost: that says nothing of the checkpoint
          refusal = std::current_exception();
        }
      },
      warn
  );
  if (refusal) {
    std::rethrow_exception(refusal);
  }
  return step;
}

} // namespace mh
