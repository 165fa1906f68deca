#include "core/foreign/megatron_buffers.hpp"

#include "core/foreign/megatron_names.hpp"

#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <utility>

namespace mh {

namespace {

constexpr std::string_view kBuffers = "optimizer.distributed.";
constexpr std::string_view kDecoderLayers = "decoder.layers.";
constexpr int64_t kAlignment = 64; ///< elements
constexpr int64_t kCompared = 64;  ///< elements of a row

/// A bucket's tensors, by state: "param".
struct BufferBucket {
  int64_t elements = 0;
  std::map<std::string, size_t> states;
};

/// The buckets of each model-parallel rank.
using BufferBuckets = std::map<int64_t, std::map<int64_t, BufferBucket>>;

/// The number after a word of a name; nothing if there is none.
std::optional<int64_t> number_after(std::string_view name, std::string_view word) {
  const size_t at = name.find(word);
  int64_t number = 0;
  if (at == std::string_view::npos) {
    return std::nullopt;
  }
  const char* begin = name.data() + at + word.size();
  const auto read = std::from_chars(begin, name.data() + name.size(), number);
  return read.ptr == begin ? std::nullopt : std::optional(number);
}

/// Nothing if there are none, or several for one rank.
BufferBuckets buckets_of(const CheckpointReader& stored) {
  BufferBuckets all;
  for (size_t i = 0; i < stored.tensors().size(); ++i) {
    const CheckpointTensor& tensor = stored.tensors()[i];
    const std::string_view name = tensor.name;
    const size_t begin = name.find(kBuffers);
    if (begin == std::string_view::npos) {
      continue;
    }
    const auto group = number_after(name, "dp_group_idx_");
    const auto bucket = number_after(name, "bucket_idx_");
    if (begin != 0 || !group || !bucket || number_after(name, "gbuf_idx_") != 0 ||
        tensor.shape.size() != 1) {
      return {};
    }
    BufferBucket& one = all[*group][*bucket];
    one.elements = tensor.shape[0];
    one.states[tensor.name.substr(name.rfind('.') + 1)] = i;
  }
  return all;
}

/// The ways in which the same tensors may be in another order.
struct ModuleOrder {
  bool fused = false;   ///< norms are within the linear layers after them (Transformer Engine's)
  bool grouped = false; ///< the first matrices of all experts, then the second ones
};

/// The place of a tensor among those of the model.
using OrderKey = std::tuple<int, int64_t, int, int64_t, int, int>;

OrderKey order_key(const std::string& name, const ModuleOrder& order, bool is_latent) {
  constexpr std::array<std::string_view, 17> kParts{
      "input_layernorm.",
      "self_attention.linear_proj.",
      "", // a fused input_layernorm
      "self_attention.linear_q",
      "", // a fused q_layernorm
      "self_attention.linear_q_up_proj.",
      "self_attention.linear_kv_down_proj.",
      "", // a fused kv_layernorm
      "self_attention.linear_kv_up_proj.",
      "self_attention.q_layernorm.",
      "self_attention.k", // k_layernorm, kv_layernorm
      "pre_mlp_layernorm.",
      "mlp.router.",
      "mlp.experts.",
      "mlp.shared_experts.gate_weight",
      "mlp.shared_experts.",
      "mlp."};
  const int bias = name.ends_with(".bias") ? 1 : 0;
  if (!name.starts_with(kDecoderLayers)) {
    constexpr std::array<std::string_view, 4> kTop{
        "embedding.word", "embedding.position", "decoder.layers.", "decoder.final"};
    const auto* top = std::ranges::find_if(kTop, [&](auto part) { return name.starts_with(part); });
    return {static_cast<int>(top - kTop.begin()), 0, 0, 0, 0, bias};
  }
  const int64_t layer = number_after(name, kDecoderLayers).value_or(0);
  const std::string body = name.substr(name.find('.', kDecoderLayers.size()) + 1);
  int part = 0;
  for (size_t i = 0; i < kParts.size(); ++i) { // the longest that fits
    const std::string_view best = kParts[static_cast<size_t>(part)];
    if (!kParts[i].empty() && body.starts_with(kParts[i]) &&
        (!body.starts_with(best) || kParts[i].size() > best.size())) {
      part = static_cast<int>(i);
    }
  }
  if (order.fused && part == 0 && !is_latent) {
    part = 2;
  } else if (order.fused && is_latent && part == 9) {
    part = 4;
  } else if (order.fused && is_latent && part == 10) {
    part = 7;
  }
  const int64_t expert = number_after(body, "local_experts.").value_or(0);
  const int matrix = body.find("linear_fc2.") == std::string::npos ? 0 : 1;
  return order.grouped && part == 13
             ? OrderKey{2, layer, part, matrix, static_cast<int>(expert), bias}
             : OrderKey{2, layer, part, expert, matrix, bias};
}

/// A parameter of a model-parallel rank: its boxes of the global tensor, one after the other.
struct RankParameter {
  std::string name;
  std::vector<Box> boxes;

  [[nodiscard]] int64_t elements() const {
    int64_t all = 0;
    for (const Box& box : boxes) {
      all += box.elements();
    }
    return all;
  }
};

class BufferStates {
public:
  BufferStates(
      const std::vector<AssembledTensor>& weights,
      BufferBuckets buckets,
      const nlohmann::json& arguments
  )
      : buckets_(std::move(buckets))
      , tensor_(argument(arguments, "tensor_model_parallel_size"))
      , pipeline_(argument(arguments, "pipeline_model_parallel_size")) {
    for (const AssembledTensor& one : weights) {
      const std::string& name = one.tensor.name;
      if (!one.tensor.is_weight || name.ends_with(".expert_bias")) {
        continue; // a buffer, which is not trained
      }
      weights_[name] = &one;
      is_latent_ = is_latent_ || name.find("linear_kv_up_proj") != std::string::npos;
      layers_ = std::max(layers_, number_after(name, kDecoderLayers).value_or(-1) + 1);
    }
  }

  /// Nothing if the buckets are not of these ranks, or not of these sizes.
  [[nodiscard]] std::vector<AssembledTensor>
  lay_out(const ModuleOrder& order, const CheckpointReader& stored) {
    found_.clear();
    if (tensor_ < 1 || pipeline_ < 1 || layers_ % pipeline_ != 0 ||
        std::ssize(buckets_) != tensor_ * pipeline_) {
      return {};
    }
    for (const auto& [group, buckets] : buckets_) {
      if (group < 0 || group >= tensor_ * pipeline_ ||
          !lay_out_rank(parameters(group, order), buckets, stored)) {
        return {};
      }
    }
    std::vector<AssembledTensor> all;
    for (auto& [name, one] : found_) {
      all.push_back(std::move(one));
    }
    return all;
  }

private:
  static int64_t argument(const nlohmann::json& arguments, const char* key) {
    const auto found = arguments.find(key);
    return found != arguments.end() && found->is_number_integer() ? found->get<int64_t>() : 1;
  }

  /// The pipeline stage that has a tensor.
  [[nodiscard]] int64_t stage_of(const std::string& name) const {
    const auto layer = number_after(name, kDecoderLayers);
    return layer                            ? *layer / (layers_ / pipeline_)
           : name.starts_with("embedding.") ? 0
                                            : pipeline_ - 1;
  }

  [[nodiscard]] bool is_gated(const std::string& name) const {
    const size_t at = name.rfind("linear_fc1.");
    if (at == std::string::npos) {
      return false;
    }
    const auto other = weights_.find(name.substr(0, at) + "linear_fc2.weight");
    return other != weights_.end() && other->second->tensor.shape.size() == 2 &&
           weights_.at(name)->tensor.shape[0] == 2 * other->second->tensor.shape[1];
  }

  /// A rank's parameters in the order of its modules.
  [[nodiscard]] std::vector<RankParameter>
  parameters(int64_t group, const ModuleOrder& order) const {
    std::vector<RankParameter> mine;
    for (const auto& [name, weight] : weights_) {
      if (stage_of(name) != group / tensor_) {
        continue;
      }
      const std::vector<int64_t>& shape = weight->tensor.shape;
      RankParameter one{name, {{std::vector<int64_t>(shape.size()), shape}}};
      const auto dim = megatron_split_dim(name);
      if (dim && *dim < shape.size() && tensor_ > 1) {
        const int64_t halves = is_gated(name) ? 2 : 1;
        const int64_t size = shape[*dim] / halves / tensor_;
        one.boxes[0].shape[*dim] = size;
        one.boxes.resize(static_cast<size_t>(halves), one.boxes[0]);
        for (int64_t half = 0; half < halves; ++half) {
          one.boxes[static_cast<size_t>(half)].offset[*dim] =
              half * shape[*dim] / 2 * (halves - 1) + group % tensor_ * size;
        }
      }
      mine.push_back(std::move(one));
    }
    std::ranges::sort(mine, {}, [&](const RankParameter& one) {
      return order_key(one.name, order, is_latent_);
    });
    return mine;
  }

  bool lay_out_rank(
      const std::vector<RankParameter>& parameters,
      const std::map<int64_t, BufferBucket>& buckets,
      const CheckpointReader& stored
  ) {
    auto bucket = buckets.begin();
    int64_t at = 0;
    for (auto one = parameters.rbegin(); one != parameters.rend(); ++one) {
      const auto aligned = [&at] { return (at + kAlignment - 1) / kAlignment * kAlignment; };
      if (bucket != buckets.end() &&
          (at == bucket->second.elements || aligned() == bucket->second.elements)) {
        ++bucket;
        at = 0;
      }
      at = aligned();
      if (bucket == buckets.end() || at + one->elements() > bucket->second.elements) {
        return false;
      }
      for (const auto& [state, source] : bucket->second.states) {
        add(*one, state == "param" ? "master" : state, stored.tensors()[source].dtype, source, at);
      }
      at += one->elements();
    }
    return bucket != buckets.end() && at == bucket->second.elements &&
           std::next(bucket) == buckets.end();
  }

  void
  add(const RankParameter& one,
      const std::string& state,
      at::ScalarType dtype,
      size_t source,
      int64_t at) {
    const AssembledTensor& weight = *weights_.at(one.name);
    const std::string name = "optimizer." + state + "." + one.name;
    AssembledTensor& made =
        found_
            .try_emplace(
                name, AssembledTensor{{name, dtype, weight.tensor.shape, /*is_weight=*/false}, {}}
            )
            .first->second;
    for (const Box& box : one.boxes) {
      const bool is_there = std::ranges::any_of(made.parts, [&](const AssembledPart& part) {
        return part.box.offset == box.offset; // each rank has all of it
      });
      if (!is_there) {
        made.parts.push_back({source, {at}, box});
      }
      at += box.elements();
    }
  }

  BufferBuckets buckets_;
  int64_t tensor_, pipeline_, layers_ = 0;
  bool is_latent_ = false;
  std::map<std::string, const AssembledTensor*> weights_;
  std::map<std::string, AssembledTensor> found_;
};

/// The first elements of a part, along its last dimension.
at::Tensor first_of(CheckpointReader& stored, const AssembledPart& part, int64_t count) {
  const CheckpointTensor& source = stored.tensors()[part.source];
  std::vector<int64_t> sizes(part.from.size(), 1);
  sizes.back() = count;
  const Slice slice{
      source.name, source.shape, part.from, at::empty(sizes, at::TensorOptions(source.dtype))};
  stored.read({&slice, 1});
  return slice.local.flatten();
}

const AssembledPart* first_part(const AssembledTensor& one) {
  const auto found = std::ranges::find_if(one.parts, [](const AssembledPart& part) {
    return std::ranges::all_of(part.box.offset, [](int64_t at) { return at == 0; });
  });
  return found == one.parts.end() ? nullptr : &*found;
}

/// Whether each master begins with its weight.
bool are_masters(
    CheckpointReader& stored,
    const std::vector<AssembledTensor>& weights,
    const std::vector<AssembledTensor>& states
) {
  std::map<std::string, const AssembledTensor*> by_name;
  for (const AssembledTensor& one : weights) {
    by_name["optimizer.master." + one.tensor.name] = &one;
  }
  bool any = false;
  for (const AssembledTensor& master : states) {
    const auto weight = by_name.find(master.tensor.name);
    if (weight == by_name.end() || master.tensor.shape.empty()) {
      continue;
    }
    const AssembledPart* const a = first_part(*weight->second);
    const AssembledPart* const b = first_part(master);
    if (a == nullptr || b == nullptr) {
      return false;
    }
    const int64_t count = std::min({kCompared, a->box.shape.back(), b->box.shape.back()});
    const at::Tensor theirs = first_of(stored, *a, count);
    if (!at::equal(theirs, first_of(stored, *b, count).to(theirs.scalar_type()))) {
      return false;
    }
    any = true;
  }
  return any;
}

} // namespace

std::vector<AssembledTensor> states_of_buffers(
    CheckpointReader& stored,
    const std::vector<AssembledTensor>& weights,
    const nlohmann::json& arguments
) {
  BufferBuckets buckets = buckets_of(stored);
  if (buckets.empty()) {
    return {};
  }
  BufferStates states(weights, std::move(buckets), arguments);
  for (const ModuleOrder order :
       {ModuleOrder{true, true},
        ModuleOrder{true, false},
        ModuleOrder{false, false},
        ModuleOrder{false, true}}) {
    std::vector<AssembledTensor> found = states.lay_out(order, stored);
    if (!found.empty() && are_masters(stored, weights, found)) {
      return found;
    }
  }
  return {};
}

} // namespace mh
