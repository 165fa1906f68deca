#include "core/foreign/buffer_layout.hpp"

#include "core/base/printable.hpp"
#include "core/foreign/megatron_names.hpp"

#include <algorithm>
#include <optional>
#include <utility>

namespace mh {

namespace {

constexpr std::string_view kWords = "embedding.word_embeddings.weight";
constexpr std::string_view kOutput = "output_layer.weight";
constexpr int64_t kAlignment = 64;                ///< elements
constexpr int64_t kMostNumber = int64_t{1} << 40; ///< the number of a layer or an expert

int64_t aligned(int64_t at) {
  return (at + kAlignment - 1) / kAlignment * kAlignment;
}

/// A parameter's place among the model's chunks and modules.
struct OrderedParameter {
  enum class Chunk : uint8_t { first, of_layer, last };

  const AssembledTensor* weight = nullptr;
  Chunk chunk = Chunk::first;
  int64_t layer = 0;
  std::optional<int64_t> expert{};
  ModuleKey key{};
};

/// The layers of a stage's chunk.
struct LayerChunk {
  int64_t stage = 0, begin = 0, end = 0;
  bool is_first = false, is_last = false;

  [[nodiscard]] bool has(const OrderedParameter& one) const {
    return one.chunk == OrderedParameter::Chunk::first  ? is_first
           : one.chunk == OrderedParameter::Chunk::last ? is_last
                                                        : begin <= one.layer && one.layer < end;
  }
};

/// A parameter of a rank: its boxes of the global tensor, one after the other.
struct RankParameter {
  const AssembledTensor* weight = nullptr;
  std::vector<Box> boxes;

  [[nodiscard]] int64_t elements() const {
    int64_t all = 0;
    for (const Box& box : boxes) {
      all += box.elements();
    }
    return all;
  }
};

using RankParameters = std::vector<RankParameter>;

/// The beginning of a rank's parameter.
struct ParameterPlace {
  const RankParameter* parameter = nullptr;
  const BufferBucket* bucket = nullptr;
  int64_t at = 0;
};

/// The places of a rank's parameters; nothing if they do not fill the buffer exactly.
std::optional<std::vector<ParameterPlace>>
places_in(const StateBuffer& buffer, const RankParameters& parameters) {
  std::vector<ParameterPlace> all;
  auto bucket = buffer.begin();
  int64_t at = 0;
  for (auto one = parameters.rbegin(); one != parameters.rend(); ++one) {
    if (bucket != buffer.end() &&
        (at == bucket->second.elements || aligned(at) == bucket->second.elements)) {
      ++bucket;
      at = 0;
    }
    at = aligned(at);
    if (bucket == buffer.end() || one->elements() > bucket->second.elements - at) {
      return std::nullopt;
    }
    all.push_back({&*one, &bucket->second, at});
    at += one->elements();
  }
  const bool is_full =
      bucket != buffer.end() && std::next(bucket) == buffer.end() && at == bucket->second.elements;
  return is_full ? std::optional(std::move(all)) : std::nullopt;
}

class BufferLayout {
public:
  BufferLayout(
      const SavedBuffers& buffers,
      const std::vector<AssembledTensor>& weights,
      const ModuleOrder& order,
      const CheckpointReader& stored
  )
      : buffers_(buffers)
      , order_(order)
      , stored_(stored) {
    for (const AssembledTensor& one : weights) {
      const std::string& name = one.tensor.name;
      if (!one.tensor.is_weight || name.ends_with(".expert_bias")) {
        continue; // a buffer, which is not trained
      }
      weights_[name] = &one;
      is_latent_ = is_latent_ || name.find("linear_kv_up_proj") != std::string::npos;
      predicts_ = predicts_ || name.starts_with("mtp.");
    }
    for (const auto& [name, weight] : weights_) {
      add_parameter(name, *weight);
    }
    std::ranges::sort(parameters_, {}, &OrderedParameter::key);
  }

  [[nodiscard]] std::vector<AssembledTensor> lay_out(std::string& ret_problem) {
    if (!has_all_ranks(ret_problem)) {
      return {};
    }
    const auto chunks = std::ssize(buffers_.dense.begin()->second);
    std::map<int64_t, size_t> experts_taken; // buffers, by rank
    int64_t layer = 0;
    for (int64_t i = 0; i < chunks * buffers_.pipeline; ++i) {
      const bool is_last = i + 1 == chunks * buffers_.pipeline;
      LayerChunk chunk{i % buffers_.pipeline, layer, layer, i == 0, is_last};
      if (!fill_dense(chunk, static_cast<size_t>(i / buffers_.pipeline)) ||
          !fill_experts(chunk, experts_taken)) {
        ret_problem = "what is known of the order of its modules does not give the sizes of the "
                      "buffers of pipeline stage " +
                      std::to_string(chunk.stage) +
                      (chunks == 1 ? "" : ", chunk " + std::to_string(i / buffers_.pipeline));
        return {};
      }
      layer = chunk.end;
    }
    for (const auto& [rank, all] : buffers_.experts) {
      if (experts_taken[rank] != all.size()) {
        ret_problem = "experts have more buffers than there are model chunks with experts";
        return {};
      }
    }
    std::vector<AssembledTensor> all;
    for (auto& [name, one] : found_) {
      int64_t elements = 0;
      for (const AssembledPart& part : one.parts) {
        elements += part.box.elements();
      }
      if (elements != Box{{}, one.tensor.shape}.elements()) {
        ret_problem = "the ranks' parts of " + printable(name) + " do not give a whole tensor";
        return {};
      }
      all.push_back(std::move(one));
    }
    return all;
  }

private:
  void add_parameter(const std::string& name, const AssembledTensor& weight) {
    using Chunk = OrderedParameter::Chunk;
    const std::string_view stack = layer_stack(name);
    const auto layer = stack.empty() ? std::nullopt : number_after(name, stack);
    OrderedParameter one{&weight, Chunk::last, layer.value_or(0), {}, key_of(name)};
    if (layer) {
      one.chunk = Chunk::of_layer;
      layers_ = std::max(layers_, std::min(*layer, kMostNumber) + 1);
    } else if (name.starts_with("embedding.")) {
      one.chunk = Chunk::first;
    }
    if (name.find(".mlp.experts.") != std::string::npos) {
      one.expert = number_after(name, "local_experts.").value_or(0);
      experts_ = std::max(experts_, std::min(*one.expert, kMostNumber) + 1);
    }
    parameters_.push_back(one);
    // The last chunk has a copy of embeddings that it needs, too.
    if (one.chunk == Chunk::first && predicts_) {
      one.chunk = Chunk::last;
      copies_.push_back(one);
    } else if (name == kWords && !weights_.contains(std::string(kOutput))) {
      one.chunk = Chunk::last;
      one.key = key_of(std::string(kOutput));
      copies_.push_back(one);
    }
  }

  [[nodiscard]] ModuleKey key_of(const std::string& name) const {
    return module_key(name, order_, is_latent_);
  }

  [[nodiscard]] bool has_all_ranks(std::string& ret_problem) const {
    const SavedBuffers& b = buffers_;
    const auto is_range = [](const RankBuffers& of, int64_t ranks) {
      return !of.empty() && std::ssize(of) <= ranks && of.begin()->first >= 0 &&
             of.rbegin()->first < ranks;
    };
    const bool has_chunks = std::ranges::all_of(b.dense, [&](const auto& one) {
      return one.second.size() == b.dense.begin()->second.size();
    });
    const int64_t dense = b.tensor * b.pipeline;
    const int64_t experts = b.expert_tensor * b.expert * b.pipeline;
    const bool has_experts = is_range(b.experts, experts) && experts_ > 0 &&
                             experts_ % b.expert == 0 &&
                             b.expert_tensor * b.expert <= std::ssize(b.experts);
    if (!is_range(b.dense, dense) || std::ssize(b.dense) != dense) {
      ret_problem = "there are buffers of " + std::to_string(b.dense.size()) +
                    " model-parallel ranks, and by the saved arguments there were " +
                    std::to_string(dense);
    } else if (!has_chunks) {
      ret_problem = "pipeline stages have different numbers of buffers";
    } else if (layers_ > std::ssize(weights_)) {
      ret_problem = "there are fewer weights than layers";
    } else if (!b.experts.empty() && !has_experts) {
      ret_problem = "experts have buffers of " + std::to_string(b.experts.size()) +
                    " model-parallel ranks, and by the saved arguments there were " +
                    std::to_string(experts);
    } else {
      return true;
    }
    return false;
  }

  /// Gives a chunk so many layers as fill the buffers of its dense parameters.
  bool fill_dense(LayerChunk& ret_chunk, size_t number) {
    const auto of_rank = [&](int64_t rank) -> const StateBuffer& {
      return buffers_.dense.at(ret_chunk.stage * buffers_.tensor + rank)[number];
    };
    if (ret_chunk.is_last) {
      ret_chunk.end = layers_;
    }
    while (!places_in(of_rank(0), dense_parameters(ret_chunk, 0))) {
      if (ret_chunk.end++ >= layers_) {
        return false;
      }
    }
    for (int64_t rank = 0; rank < buffers_.tensor; ++rank) {
      if (!take(dense_parameters(ret_chunk, rank), of_rank(rank))) {
        return false;
      }
    }
    return true;
  }

  /// Chunks without experts have no buffers of them.
  bool fill_experts(const LayerChunk& chunk, std::map<int64_t, size_t>& ret_taken) {
    const SavedBuffers& b = buffers_;
    for (int64_t i = 0; i < b.expert_tensor * b.expert && !b.experts.empty(); ++i) {
      const int64_t rank = chunk.stage * b.expert_tensor * b.expert + i;
      const RankParameters parameters = expert_parameters(chunk, i);
      if (parameters.empty()) {
        continue;
      }
      const auto all = b.experts.find(rank);
      size_t& taken = ret_taken[rank];
      if (all == b.experts.end() || taken == all->second.size() ||
          !take(parameters, all->second[taken++])) {
        return false;
      }
    }
    return true;
  }

  [[nodiscard]] bool is_one_chunk() const {
    return buffers_.pipeline == 1 && buffers_.dense.begin()->second.size() == 1;
  }

  [[nodiscard]] RankParameters dense_parameters(const LayerChunk& chunk, int64_t rank) const {
    RankParameters mine;
    std::vector<const OrderedParameter*> all;
    for (const OrderedParameter& one : parameters_) {
      if (chunk.has(one) && (!one.expert || buffers_.experts.empty())) {
        all.push_back(&one);
      }
    }
    for (const OrderedParameter& copy : copies_) {
      if (chunk.is_last && !is_one_chunk()) {
        const auto behind =
            std::ranges::upper_bound(all, copy.key, {}, [](const auto* one) { return one->key; });
        all.insert(behind, &copy);
      }
    }
    for (const OrderedParameter* one : all) {
      const int64_t ranks = one->expert ? buffers_.expert_tensor : buffers_.tensor;
      mine.push_back(part_of(*one->weight, rank % ranks, ranks));
    }
    return mine;
  }

  /// Tensor-parallel ranks come first, then those that have the next experts.
  [[nodiscard]] RankParameters expert_parameters(const LayerChunk& chunk, int64_t rank) const {
    const int64_t ranks = buffers_.expert_tensor, each = experts_ / buffers_.expert;
    RankParameters mine;
    for (const OrderedParameter& one : parameters_) {
      if (chunk.has(one) && one.expert && *one.expert / each == rank / ranks) {
        mine.push_back(part_of(*one.weight, rank % ranks, ranks));
      }
    }
    return mine;
  }

  /// The dimension that tensor-parallel ranks have parts of.
  [[nodiscard]] std::optional<size_t> split_dim(const std::string& name) const {
    const bool is_down =
        name.ends_with("linear_q_down_proj.weight") || name.ends_with("linear_kv_down_proj.weight");
    return is_down && !order_.fused ? std::optional<size_t>(0) : megatron_split_dim(name);
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

  /// A rank's part of a parameter.
  [[nodiscard]] RankParameter
  part_of(const AssembledTensor& weight, int64_t rank, int64_t ranks) const {
    const std::vector<int64_t>& shape = weight.tensor.shape;
    RankParameter one{&weight, {{std::vector<int64_t>(shape.size()), shape}}};
    const auto dim = split_dim(weight.tensor.name);
    if (dim && *dim < shape.size() && ranks > 1) {
      const int64_t halves = is_gated(weight.tensor.name) ? 2 : 1;
      const int64_t whole = shape[*dim] / halves, size = whole / ranks;
      one.boxes[0].shape[*dim] = size;
      one.boxes.resize(static_cast<size_t>(halves), one.boxes[0]);
      for (int64_t half = 0; half < halves; ++half) {
        one.boxes[static_cast<size_t>(half)].offset[*dim] = half * whole + rank * size;
      }
    }
    return one;
  }

  /// Whether a rank's parameters fill its buffer, from which they come then.
  bool take(const RankParameters& parameters, const StateBuffer& buffer) {
    const auto places = places_in(buffer, parameters);
    for (const ParameterPlace& place : places.value_or(std::vector<ParameterPlace>{})) {
      for (const auto& [state, source] : place.bucket->states) {
        add(*place.parameter, state == "param" ? "master" : state, source, place.at);
      }
    }
    return places.has_value();
  }

  void add(const RankParameter& one, const std::string& state, size_t source, int64_t at) {
    const CheckpointTensor& weight = one.weight->tensor;
    const at::ScalarType dtype = stored_.tensors()[source].dtype;
    const std::string name = "optimizer." + state + "." + weight.name;
    AssembledTensor& made =
        found_
            .try_emplace(
                name, AssembledTensor{{name, dtype, weight.shape, /*is_weight=*/false}, {}}
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

  const SavedBuffers& buffers_;
  ModuleOrder order_;
  const CheckpointReader& stored_;
  int64_t layers_ = 0, experts_ = 0;
  bool is_latent_ = false, predicts_ = false;
  std::map<std::string, const AssembledTensor*> weights_;
  std::vector<OrderedParameter> parameters_; ///< in the order of modules
  std::vector<OrderedParameter>
      copies_; ///< parameters of the first chunk that the last one has, too
  std::map<std::string, AssembledTensor> found_;
};

} // namespace

std::vector<AssembledTensor> lay_out_buffers(
    const SavedBuffers& buffers,
    const std::vector<AssembledTensor>& weights,
    const ModuleOrder& order,
    const CheckpointReader& stored,
    std::string& ret_problem
) {
  return BufferLayout(buffers, weights, order, stored).lay_out(ret_problem);
}

} // namespace mh
