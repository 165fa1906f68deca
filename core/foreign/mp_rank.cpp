// Megatron-LM's checkpoints of a file for each rank: tensor-parallel parts joined, layers of pipeline
// stages and experts numbered over all of them.

#include "core/base/printable.hpp"
#include "core/checkpoint/assembled.hpp"
#include "core/foreign/megatron.hpp"
#include "core/foreign/megatron_names.hpp"
#include "core/foreign/megatron_parts.hpp"
#include "core/foreign/rank_files.hpp"
#include "core/foreign/torch_folder.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

namespace mh {

namespace {

constexpr std::string_view kExpertNames = "mlp.experts.local_experts.";
constexpr std::string_view kGroupedExperts = "mlp.experts.linear_fc";
constexpr int64_t kMostLayers = 1 << 20;

/// A tensor of one rank's file.
struct RankTensor {
  size_t source = 0; ///< in the folder's tensors
  RankFile rank;
  int64_t chunk = 0;   ///< virtual pipeline stage
  std::string trunk{}; ///< "decoder.layers.", "mtp.layers.0.transformer_layer."; empty: no layer's
  int64_t layer = -1;  ///< number of a decoder's layer within stage and chunk
  int64_t expert = -1;
  std::string body; ///< its name, of a layer's tensor what comes after trunk and number
  int64_t row = 0;  ///< its first row within the stored tensor, of which it may be a part
  std::vector<int64_t> shape{};
};

class RankTensors {
public:
  RankTensors(const TorchFolder& stored, const std::vector<RankFile>& files)
      : stored_(stored) {
    for (const RankFile& file : files) {
      ranks_ = std::max(ranks_, file.tensor + 1);
    }
    for (size_t i = 0; i < stored.tensors().size(); ++i) {
      const std::string& name = stored.tensors()[i].name;
      const auto file = std::find_if(files.begin(), files.end(), [&](const RankFile& one) {
        return name.starts_with(one.name + ":");
      });
      if (file != files.end()) {
        add(i, *file, name.substr(file->name.size() + 1));
      }
    }
    number();
  }

  [[nodiscard]] std::vector<AssembledTensor> take() {
    std::map<std::string, std::vector<const RankTensor*>> by_name;
    for (const RankTensor& one : tensors_) {
      by_name[global_name(one)].push_back(&one);
    }
    std::vector<AssembledTensor> all;
    for (auto& [name, parts] : by_name) {
      all.push_back(joined(name, parts));
    }
    return all;
  }

private:
  void add(size_t source, const RankFile& rank, std::string name) {
    constexpr std::string_view kModel = "model";
    if (!name.starts_with(kModel)) {
      return;
    }
    name.erase(0, kModel.size());
    RankTensor one{.source = source, .rank = rank, .body = ""};
    one.chunk = std::max<int64_t>(0, take_small(name));
    if (!name.starts_with('.') || name.ends_with("._extra_state")) {
      return;
    }
    const MegatronName meant = megatron_name(modern_megatron_name(name.substr(1)));
    if (meant.is_second) {
      return; // the first one is there, too
    }
    one.body = meant.text;
    if (one.body.starts_with("word_embeddings_for_head.")) {
      return; // a copy of the first stage's
    }
    one.trunk = take_prediction(one.body);
    if (const std::string_view stack = layer_stack(one.body); !stack.empty()) {
      one.trunk = stack;
      one.body.erase(0, stack.size());
      one.layer = take_small(one.body);
      if (one.layer < 0 || one.layer > kMostLayers || !one.body.starts_with('.')) {
        refuse(one, "it has no number of a layer");
      }
      one.body.erase(0, 1);
    }
    const bool in_layer = !one.trunk.empty();
    if (in_layer && one.body.starts_with(kExpertNames)) {
      one.body.erase(0, kExpertNames.size());
      one.expert = take_small(one.body);
      one.body = "mlp.experts.local_experts" + one.body;
    } else if (in_layer && one.body.starts_with(kGroupedExperts)) {
      // Transformer Engine's: linear_fc1.weight7
      const size_t digits = one.body.find_last_not_of("0123456789") + 1;
      std::string number = one.body.substr(digits);
      one.expert = take_small(number);
      one.body = "mlp.experts.local_experts." +
                 one.body.substr(std::string_view("mlp.experts.").size(), digits - 12);
    }
    if (one.expert > kMostLayers || (one.expert < 0 && one.body.find("experts") == 4)) {
      refuse(one, "experts are read one by one, not in the form of the old GroupedMLP");
    }
    one.shape = stored(one).shape;
    if (is_joined(one.body)) {
      add_parts(one);
    } else {
      tensors_.push_back(std::move(one));
    }
  }

  /// Adds the parts of what a mixer joins, whose sizes other tensors of the layer show.
  void add_parts(const RankTensor& joined) {
    const CheckpointTensor* out = sibling(joined, joined.body, "mixer.out_proj.weight");
    const CheckpointTensor* heads = sibling(joined, joined.body, "mixer.A_log");
    std::vector<JoinedPart> parts;
    if (out != nullptr && heads != nullptr && out->shape.size() == 2 && heads->shape.size() == 1 &&
        !joined.shape.empty()) {
      parts = joined_parts(joined.body, joined.shape[0], out->shape[1], heads->shape[0]);
    }
    if (parts.empty()) {
      refuse(
          joined,
          "it has the shape " + shape_text(joined.shape) +
              ", which other tensors of its layer contradict"
      );
    }
    for (const JoinedPart& part : parts) {
      RankTensor one = joined;
      one.body = part.name;
      one.row = part.row;
      one.shape[0] = part.rows;
      tensors_.push_back(std::move(one));
    }
  }

  /// The part of a stack that a file has: by chunk and stage.
  using StackPart = std::tuple<std::string, int64_t, int64_t>;

  static StackPart part_of(const RankTensor& one) {
    return {one.trunk, one.chunk, one.rank.pipeline};
  }

  /// Counts layers of stages and experts of ranks. Chunk k of stage p is the (k stages + p)-th part
  /// of a stack.
  void number() {
    std::map<StackPart, int64_t> counts;
    for (const RankTensor& one : tensors_) {
      int64_t& count = counts[part_of(one)];
      count = std::max(count, one.layer + 1);
      experts_ = std::max(experts_, one.expert + 1);
    }
    std::map<std::string, int64_t> layers; // so far, by stack
    for (const auto& [part, count] : counts) {
      first_layer_[part] = layers[std::get<0>(part)];
      layers[std::get<0>(part)] += count;
    }
  }

  [[nodiscard]] std::string global_name(const RankTensor& one) const {
    std::string body = one.body;
    if (one.expert >= 0) {
      constexpr std::string_view kBefore = "mlp.experts.local_experts.";
      body = std::string(kBefore) + std::to_string(one.expert + experts_ * one.rank.expert) + "." +
             one.body.substr(kBefore.size());
    }
    if (one.layer < 0) {
      return one.trunk + body;
    }
    const int64_t layer = one.layer + first_layer_.at(part_of(one));
    return one.trunk + std::to_string(layer) + "." + body;
  }

  [[nodiscard]] const CheckpointTensor& stored(const RankTensor& one) const {
    return stored_.tensors()[one.source];
  }

  [[noreturn]] void refuse(const RankTensor& one, const std::string& why) const {
    throw Error(
        (stored_.path() / one.rank.name).string() + ": tensor " +
            printable(stored(one).name.substr(one.rank.name.size() + 1)) + ": " + why,
        "the checkpoint is damaged, incomplete or of another version of Megatron-LM",
        exit_code::data
    );
  }

  /// The tensor next to another one in its file.
  [[nodiscard]] const CheckpointTensor*
  sibling(const RankTensor& one, std::string_view ending, std::string_view other) const {
    std::string name = stored(one).name;
    name.replace(name.rfind(ending), std::string::npos, other);
    return static_cast<const CheckpointReader&>(stored_).CheckpointReader::find(name);
  }

  /// Whether each rank has its parts of a gate and of what it multiplies, one after the other.
  [[nodiscard]] bool is_gated(const RankTensor& one) const {
    for (const auto& [up, down] :
         {std::pair("linear_fc1.", "linear_fc2.weight"),
          std::pair("dense_h_to_4h.", "dense_4h_to_h.weight")}) {
      const std::string& name = stored(one).name;
      if (name.rfind(up) == std::string::npos) {
        continue;
      }
      const std::string number =
          one.expert >= 0 && one.body.ends_with(".weight") && !name.ends_with(".weight")
              ? name.substr(name.find_last_not_of("0123456789") + 1)
              : "";
      const CheckpointTensor* other = sibling(one, up, down + number);
      if (other != nullptr && other->shape.size() == 2) {
        return stored(one).shape[0] == 2 * other->shape[1];
      }
    }
    return false;
  }

  /// The dimension that ranks have parts of. Transformer Engine's ranks have all of the projections
  /// down to a latent, megatron-core's own a part: fewer rows than the projection up reads.
  [[nodiscard]] std::optional<size_t>
  split_dim(const std::string& name, const RankTensor& one) const {
    constexpr std::string_view kDown = "_down_proj.weight";
    if (!name.ends_with(kDown)) {
      return megatron_split_dim(name);
    }
    const CheckpointTensor* up = sibling(one, kDown, "_up_proj.weight");
    const bool split = up != nullptr && up->shape.size() == 2 && !stored(one).shape.empty() &&
                       stored(one).shape[0] < up->shape[1];
    return split ? std::optional<size_t>(0) : std::nullopt;
  }

  [[nodiscard]] AssembledTensor
  joined(const std::string& name, std::vector<const RankTensor*> parts) const {
    std::sort(parts.begin(), parts.end(), [](const RankTensor* a, const RankTensor* b) {
      return std::tie(a->rank.pipeline, a->rank.expert, a->rank.tensor) <
             std::tie(b->rank.pipeline, b->rank.expert, b->rank.tensor);
    });
    const RankTensor& first = *parts.front();
    std::erase_if(parts, [&](const RankTensor* one) { // copies on other stages and ranks
      return one->rank.pipeline != first.rank.pipeline || one->rank.expert != first.rank.expert;
    });
    const auto dim = split_dim(name, first);
    AssembledTensor made{stored(first), {}};
    made.tensor.name = name;
    made.tensor.is_weight = true;
    made.tensor.shape = first.shape;
    const std::vector<int64_t>& shape = first.shape;
    if (!dim) {
      made.parts.push_back(whole_part(first));
      return made;
    }
    if (std::ssize(parts) != ranks_) {
      refuse(
          first,
          std::to_string(parts.size()) + " of " + std::to_string(ranks_) +
              " tensor-parallel ranks have a part of it"
      );
    }
    if (shape.size() <= *dim) {
      refuse(first, "it has the shape " + shape_text(shape));
    }
    const bool gated = *dim == 0 && ranks_ > 1 && is_gated(first);
    const int64_t halves = gated ? 2 : 1;
    const int64_t size = shape[*dim] / halves;
    made.tensor.shape[*dim] *= ranks_;
    for (int64_t r = 0; r < ranks_; ++r) {
      const RankTensor& one = *parts[static_cast<size_t>(r)];
      if (one.shape != shape || one.rank.tensor != r || stored(one).dtype != stored(first).dtype) {
        refuse(
            one,
            "it has the shape " + shape_text(one.shape) + ", that of the first rank " +
                shape_text(shape)
        );
      }
      for (int64_t half = 0; half < halves; ++half) {
        AssembledPart part = whole_part(one);
        part.from[*dim] += half * size;
        part.box.shape[*dim] = size;
        part.box.offset[*dim] = (half * ranks_ + r) * size;
        made.parts.push_back(std::move(part));
      }
    }
    return made;
  }

  [[nodiscard]] AssembledPart whole_part(const RankTensor& one) const {
    const std::vector<int64_t> origin(one.shape.size());
    AssembledPart part{one.source, origin, {origin, one.shape}};
    if (!origin.empty()) {
      part.from[0] = one.row;
    }
    return part;
  }

  const TorchFolder& stored_;
  std::vector<RankTensor> tensors_;
  std::map<StackPart, int64_t> first_layer_;
  int64_t ranks_ = 1, experts_ = 0;
};

/// Before version 2.0 the rows of queries, keys and values were in another order.
void require_version(const Path& folder, const nlohmann::json& arguments) {
  const auto version = arguments.find("checkpoint_version");
  if (version == arguments.end() || !version->is_number() || version->get<double>() < 2) {
    throw Error(
        folder.string() + " is of checkpoint_version " +
            (version == arguments.end() ? "0" : version->dump()) +
            ", in which queries, keys and values are in another order; expected 2.0 or later",
        "load and save it with a Megatron-LM of 2021 or later",
        exit_code::data
    );
  }
}

} // namespace

bool MpRankFormat::is_whole(const Path& folder) const {
  return !rank_files(storage(), folder).empty();
}

std::unique_ptr<CheckpointReader> MpRankFormat::read(const Path& folder) const {
  return open_mp_rank(storage(), folder);
}

std::unique_ptr<CheckpointReader> open_mp_rank(Storage& storage, const Path& folder) {
  std::vector<RankFile> files = rank_files(storage, folder);
  std::vector<std::string> names;
  for (const RankFile& file : files) {
    names.push_back(file.name);
  }
  auto stored = std::make_unique<TorchFolder>(storage, folder, names);
  const std::string text = megatron_arguments(stored->files().front().root());
  const nlohmann::json arguments = nlohmann::json::parse(text);
  require_version(folder, arguments);
  settle_numbers(files, arguments);
  require_all_ranks(folder, files);
  std::vector<AssembledTensor> tensors = RankTensors(*stored, files).take();
  const auto untied = arguments.find("untie_embeddings_and_output_weights");
  if (untied != arguments.end() && *untied == false) {
    for (AssembledTensor& one : tensors) { // the last stage's copy of the embedding
      one.tensor.is_weight = one.tensor.is_weight && one.tensor.name != "output_layer.weight";
    }
  }
  return std::make_unique<AssembledReader>(
      std::move(stored), std::move(tensors), TensorNames::megatron, text
  );
}

} // namespace mh
