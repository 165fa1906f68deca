#include "core/foreign/megatron_buffers.hpp"

#include "core/base/printable.hpp"
#include "core/foreign/buffer_layout.hpp"

#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>

#include <algorithm>
#include <compare>
#include <map>
#include <set>
#include <string>
#include <utility>

namespace mh {

namespace {

constexpr std::string_view kBuffers = "optimizer.distributed.";
constexpr std::string_view kChained = "chained_";
constexpr int64_t kCompared = 64;          ///< elements of a row
constexpr int64_t kMostParallel = 1 << 20; ///< ranks of one kind of parallelism

/// The optimizer of a chain, a model-parallel rank of it, and the buffer's number there.
struct BufferName {
  int64_t optimizer = 0, rank = 0, buffer = 0;
  auto operator<=>(const BufferName&) const = default;
};

/// The buffers of a checkpoint's optimizers.
struct NamedBuffers {
  std::map<BufferName, StateBuffer> all;
  std::set<std::string> formats; ///< "(torch.bfloat16, torch.float32)", of weights and gradients
  std::string problem;
};

NamedBuffers named_buffers(const CheckpointReader& stored) {
  NamedBuffers found;
  for (size_t i = 0; i < stored.tensors().size(); ++i) {
    const CheckpointTensor& tensor = stored.tensors()[i];
    const std::string_view name = tensor.name;
    const size_t begin = name.find(kBuffers);
    if (begin == std::string_view::npos) {
      continue;
    }
    const auto optimizer = begin == 0 ? std::optional<int64_t>(0) : number_after(name, kChained);
    const auto rank = number_after(name, "dp_group_idx_");
    const auto buffer = number_after(name, "gbuf_idx_");
    const auto bucket = number_after(name, "bucket_idx_");
    const size_t format = name.find("dtype_"), format_end = name.find(".bucket_idx_");
    if (!optimizer || !rank || !buffer || !bucket || tensor.shape.size() != 1 ||
        format > format_end || (begin > 0 && !name.starts_with(kChained))) {
      found.problem = printable(tensor.name) + " is no bucket of a buffer that is known";
      return found;
    }
    found.formats.emplace(name.substr(format, format_end - format));
    BufferBucket& one = found.all[{*optimizer, *rank, *buffer}][*bucket];
    one.elements = tensor.shape[0];
    one.states[tensor.name.substr(name.rfind('.') + 1)] = i;
  }
  if (found.formats.size() > 1) {
    found.problem = "its weights have several number formats";
  }
  return found;
}

int64_t argument(const nlohmann::json& arguments, const char* key, int64_t otherwise) {
  const auto found = arguments.find(key);
  return found != arguments.end() && found->is_number_integer()
             ? std::clamp<int64_t>(found->get<int64_t>(), 1, kMostParallel)
             : otherwise;
}

/// Experts have the last optimizer, where there is expert parallelism; others have chunks one after
/// the other.
SavedBuffers saved_buffers(const NamedBuffers& named, const nlohmann::json& arguments) {
  SavedBuffers saved;
  saved.tensor = argument(arguments, "tensor_model_parallel_size", 1);
  saved.pipeline = argument(arguments, "pipeline_model_parallel_size", 1);
  saved.expert = argument(arguments, "expert_model_parallel_size", 1);
  saved.expert_tensor = argument(arguments, "expert_tensor_parallel_size", saved.tensor);
  const int64_t last = named.all.rbegin()->first.optimizer;
  for (const auto& [name, buffer] : named.all) { // sorted by optimizer, rank and number
    const bool is_expert = saved.expert > 1 && last > 0 && name.optimizer == last;
    (is_expert ? saved.experts : saved.dense)[name.rank].push_back(buffer);
  }
  return saved;
}

/// The place of an element of a weight in what is stored.
const AssembledPart* part_at(const AssembledTensor& one, const std::vector<int64_t>& index) {
  const auto found = std::ranges::find_if(one.parts, [&](const AssembledPart& part) {
    bool is_in = !part.is_flat();
    for (size_t d = 0; d < index.size(); ++d) {
      const int64_t from = index[d] - part.box.offset[d];
      is_in = is_in && from >= 0 && from < part.box.shape[d];
    }
    return is_in;
  });
  return found == one.parts.end() ? nullptr : &*found;
}

/// The masters' beginnings of each rank's part, and those of the weights.
class MasterComparison {
public:
  explicit MasterComparison(CheckpointReader& stored)
      : stored_(stored) {}

  void add(const AssembledTensor& master, const AssembledTensor& weight) {
    for (const AssembledPart& part : master.parts) {
      const AssembledPart* const own = part_at(weight, part.box.offset);
      if (own == nullptr || part.box.elements() == 0) {
        continue;
      }
      std::vector<int64_t> from = own->from;
      const size_t outer = from.size() - part.box.offset.size();
      for (size_t d = 0; d < part.box.offset.size(); ++d) {
        from[outer + d] += part.box.offset[d] - own->box.offset[d];
      }
      const int64_t count = std::min(
          {kCompared,
           part.box.shape.back(),
           own->box.offset.back() + own->box.shape.back() - part.box.offset.back()}
      );
      names_.push_back(weight.tensor.name);
      slices_.push_back(slice(part.source, part.from, count));
      slices_.push_back(slice(own->source, from, count));
    }
  }

  /// A weight that is not its master, rounded; "" if there is none.
  [[nodiscard]] std::string different() {
    stored_.read(slices_);
    for (size_t i = 0; i < names_.size(); ++i) {
      const at::Tensor weight = slices_[2 * i + 1].local.flatten();
      if (!at::equal(weight, slices_[2 * i].local.flatten().to(weight.scalar_type()))) {
        return names_[i];
      }
    }
    return "";
  }

  [[nodiscard]] bool is_empty() const { return names_.empty(); }

private:
  [[nodiscard]] Slice slice(size_t source, const std::vector<int64_t>& from, int64_t count) const {
    const CheckpointTensor& tensor = stored_.tensors()[source];
    std::vector<int64_t> sizes(from.size(), 1);
    sizes.back() = count;
    return {tensor.name, tensor.shape, from, at::empty(sizes, at::TensorOptions(tensor.dtype))};
  }

  CheckpointReader& stored_;
  std::vector<std::string> names_;
  std::vector<Slice> slices_; ///< beginnings of a master and of its weight, by turns
};

/// Why these are not the weights' states; "" if they are.
std::string state_problem(
    CheckpointReader& stored,
    const std::vector<AssembledTensor>& weights,
    const std::vector<AssembledTensor>& states
) {
  std::map<std::string, const AssembledTensor*> by_name;
  for (const AssembledTensor& one : weights) {
    by_name["optimizer.master." + one.tensor.name] = &one;
  }
  MasterComparison comparison(stored);
  for (const AssembledTensor& master : states) {
    const auto weight = by_name.find(master.tensor.name);
    if (weight != by_name.end() && !master.tensor.shape.empty()) {
      comparison.add(master, *weight->second);
    }
  }
  if (comparison.is_empty()) {
    return "they have no master weights, by which the order of modules could be checked";
  }
  const std::string name = comparison.different();
  return name.empty()
             ? ""
             : "where the master of " + printable(name) +
                   " should be, by the order of modules, are other values than the weight's";
}

} // namespace

bool is_bucket(std::string_view name) {
  const size_t at = name.find(kBuffers);
  return at == 0 || (at != std::string_view::npos && name.starts_with(kChained));
}

BufferStates states_of_buffers(
    CheckpointReader& stored,
    const std::vector<AssembledTensor>& weights,
    const nlohmann::json& arguments
) {
  const NamedBuffers named = named_buffers(stored);
  if (named.all.empty() || !named.problem.empty()) {
    return {{}, named.problem};
  }
  const SavedBuffers buffers = saved_buffers(named, arguments);
  BufferStates states;
  for (const ModuleOrder order :
       {ModuleOrder{true, true},
        ModuleOrder{true, false},
        ModuleOrder{false, false},
        ModuleOrder{false, true}}) {
    std::string problem;
    std::vector<AssembledTensor> found = lay_out_buffers(buffers, weights, order, stored, problem);
    const bool fits = !found.empty();
    if (fits) {
      problem = state_problem(stored, weights, found);
    }
    if (problem.empty()) {
      return {std::move(found), ""};
    }
    if (fits || states.unread.empty()) { // what is closer says more
      states.unread = problem;
    }
  }
  return states;
}

} // namespace mh
