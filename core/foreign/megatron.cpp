#include "core/foreign/megatron.hpp"

#include "core/base/printable.hpp"
#include "core/checkpoint/assembled.hpp"
#include "core/foreign/dcp.hpp"
#include "core/foreign/megatron_buffers.hpp"
#include "core/foreign/megatron_names.hpp"

#include <algorithm>
#include <charconv>
#include <iterator>
#include <map>
#include <set>
#include <utility>

namespace mh {

namespace {

constexpr const char* kLatest = "latest_checkpointed_iteration.txt";
constexpr int64_t kMostEntries = 1 << 22; // stacked tensors, all together

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
    for (const bool is_second : {false, true}) { // which are read where the first ones are missing
      for (size_t i = 0; i < stored.tensors().size(); ++i) {
        const MegatronName name = megatron_name(stored.tensors()[i].name);
        if (name.is_second == is_second && !(is_second && found_.contains(name.text))) {
          add(i, stored.tensors()[i], name);
        }
      }
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

  void add(size_t source, const CheckpointTensor& tensor, const MegatronName& name) {
    const size_t outer = name.stacked();
    if (tensor.name.ends_with("._extra_state") || is_other_name(tensor.name)) {
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

  /// Whether it is what the optimizer calls "param", by the name of those that are not distributed.
  [[nodiscard]] bool is_other_name(std::string_view name) const {
    constexpr std::string_view kMaster = "optimizer.state.fp32_param.";
    return name.starts_with(kMaster) &&
           stored_.CheckpointReader::find(
               "optimizer.state.param." + std::string(name.substr(kMaster.size()))
           ) != nullptr;
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
            {{text,
              tensor.dtype,
              shape,
              tensor.is_weight && !text.starts_with("optimizer.") && !is_bucket(text)},
             {}},
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
  const Path path = folder / kTorchDistCommon;
  if (!storage.contains(path)) {
    return ""; // later versions have it within
  }
  std::shared_ptr<ReadFile> file = storage.get(path);
  const uint64_t size = file->size();
  return megatron_arguments(open_torch_file(std::move(file), path, "", 0, size).root());
}

void write_value(PickleWriter& ret_out, const nlohmann::ordered_json& value);

void write_members(PickleWriter& ret_out, const nlohmann::ordered_json& members) {
  ret_out.mark();
  for (const auto& [key, value] : members.items()) {
    int64_t number = 0;
    const char* end = key.data() + key.size();
    if (const auto read = std::from_chars(key.data(), end, number);
        read.ptr == end && !key.empty()) {
      ret_out.integer(number);
    } else {
      ret_out.text(key);
    }
    if (key == "args") {
      ret_out.global("argparse", "Namespace").mark().tuple().make();
      write_members(ret_out, value);
      ret_out.build();
    } else {
      write_value(ret_out, value);
    }
  }
  ret_out.dict();
}

void write_value(PickleWriter& ret_out, const nlohmann::ordered_json& value) {
  if (value.is_object()) {
    write_members(ret_out, value);
  } else if (value.is_array()) {
    ret_out.mark();
    for (const auto& one : value) {
      write_value(ret_out, one);
    }
    ret_out.list();
  } else if (value.is_string()) {
    ret_out.text(value.get<std::string>());
  } else if (value.is_boolean()) {
    ret_out.boolean(value.get<bool>());
  } else if (value.is_number_integer()) {
    ret_out.integer(value.get<int64_t>());
  } else if (value.is_number()) {
    ret_out.real(value.get<double>());
  } else {
    ret_out.none();
  }
}

/// The text that load_common of megatron-core reads.
std::string common_text(int64_t iteration, const nlohmann::ordered_json& more) {
  nlohmann::ordered_json common{
      {"iteration", iteration},
      {"checkpoint_version", 3},
      {"num_floating_point_operations_so_far", 0},
      {"content_metadata", nlohmann::ordered_json::object()}};
  common.update(more);
  PickleWriter out;
  write_members(out, common);
  return torch_file_of(out.finish());
}

constexpr std::string_view kStates = "optimizer.";

/// "exp_avg" and the weight's name of "optimizer.exp_avg.NAME"; "" and the name of a weight.
std::pair<std::string, std::string> state_and_weight(const std::string& name) {
  if (!name.starts_with(kStates)) {
    return {"", name};
  }
  const size_t dot = name.find('.', kStates.size());
  return {name.substr(kStates.size(), dot - kStates.size()), name.substr(dot + 1)};
}

/// The beginnings of a state's names, of each optimizer that loads it.
std::vector<std::string> beginnings(const std::string& state, bool is_master) {
  std::vector<std::string> all;
  if (state.empty()) {
    all.emplace_back();
  } else if (state != "master") {
    all.push_back("optimizer.state." + state + ".");
  }
  if (is_master) {
    all.insert(all.end(), {"optimizer.state.param.", "optimizer.state.fp32_param."});
  }
  return all;
}

} // namespace

bool TorchDistFormat::is_whole(const Path& folder) const {
  return storage().contains(folder / kDcpMetadataName) &&
         storage().contains(folder / kTorchDistMark);
}

std::string TorchDistFormat::lacking(const Path& folder) const {
  return storage().contains(folder / kTorchDistCommon) && !is_whole(folder) ? kTorchDistMark : "";
}

std::unique_ptr<CheckpointReader> TorchDistFormat::read(const Path& folder) const {
  return open_torch_dist(storage(), folder);
}

std::unique_ptr<CheckpointReader> open_torch_dist(Storage& storage, const Path& folder) {
  auto stored = std::make_unique<DcpFolder>(storage, folder);
  std::vector<AssembledTensor> tensors = TorchDistTensors(*stored).take();
  std::string arguments = common_arguments(storage, folder);
  nlohmann::json known = nlohmann::json::parse(arguments.empty() ? "{}" : arguments);
  BufferStates states = states_of_buffers(*stored, tensors, known);
  if (!states.tensors.empty()) {
    std::erase_if(tensors, [](const auto& one) { return is_bucket(one.tensor.name); });
    std::ranges::move(states.tensors, std::back_inserter(tensors));
  } else if (!states.unread.empty()) {
    known[kUnreadState] = "the optimizer's buffers (dp_reshardable) are not read: " + states.unread;
    arguments = known.dump();
  }
  std::ranges::sort(tensors, {}, [](const AssembledTensor& one) { return one.tensor.name; });
  return std::make_unique<AssembledReader>(
      std::move(stored), std::move(tensors), TensorNames::megatron, std::move(arguments)
  );
}

uint64_t write_torch_dist(
    Storage& storage,
    const Path& folder,
    int64_t iteration,
    const OutlinedTensors& tensors,
    const nlohmann::ordered_json& common
) {
  std::vector<std::string> names;
  std::set<std::string> all;
  for (const TensorOutline& outline : tensors.outlines) {
    all.insert(outline.name);
    if (const auto [state, weight] = state_and_weight(outline.name); state.empty()) {
      names.push_back(weight);
    }
  }
  const auto places = torch_dist_places(names);
  const auto with_first = [](std::vector<int64_t> first, const std::vector<int64_t>& rest) {
    first.insert(first.end(), rest.begin(), rest.end());
    return first;
  };
  const Path directory = folder / iteration_name(iteration);
  put_text(storage, directory / kTorchDistCommon, common_text(iteration, common));
  const uint64_t bytes =
      write_dcp_tensors(storage, directory, tensors, "", [&](const TensorOutline& outline) {
        const auto [state, weight] = state_and_weight(outline.name);
        const MegatronPlace& place = places.at(weight);
        const bool is_master =
            state == "master" || (state.empty() && all.contains("optimizer.exp_avg." + weight) &&
                                  !all.contains("optimizer.master." + weight));
        std::vector<DcpBox> boxes;
        for (const std::string& beginning : beginnings(state, is_master)) {
          for (const std::string& name : {place.name, place.second_name}) {
            if (!name.empty()) {
              boxes.push_back(
                  {beginning + name,
                   with_first(place.all, outline.shape),
                   with_first(place.at, std::vector<int64_t>(outline.shape.size())),
                   with_first(std::vector<int64_t>(place.at.size(), 1), outline.shape)}
              );
            }
          }
        }
        return boxes;
      });
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
