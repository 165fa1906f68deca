#include "core/checkpoint/hf.hpp"

#include "core/base/printable.hpp"
#include "core/checkpoint/format.hpp"
#include "core/formats/hf_index.hpp"
#include "core/formats/json.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <charconv>
#include <string_view>
#include <utility>

namespace mh {

namespace {

constexpr const char* kSingle = "model.safetensors";
constexpr const char* kIndex = "model.safetensors.index.json";
constexpr const char* kConfig = "config.json";
constexpr uint64_t kLongestJson = 100 << 20;

/// The name that a tensor has in a language model of its own, and in today's files: models that see
/// images too hold theirs one level deeper, and the first BERT models have TensorFlow's names.
std::string modern(std::string name) {
  for (const std::string_view holder : {"language_model.", "model.language_model."}) {
    if (name.starts_with(holder)) {
      name.erase(0, holder.size());
      if (!name.starts_with("model.") && !name.starts_with("lm_head.")) {
        name.insert(0, "model.");
      }
    }
  }
  for (const auto& [old, now] : {std::pair("gamma", "weight"), std::pair("beta", "bias")}) {
    const std::string ending = std::string(".LayerNorm.") + old;
    if (name.ends_with(ending)) {
      name.replace(name.size() - std::string_view(old).size(), std::string::npos, now);
    }
  }
  return name;
}

} // namespace

std::optional<std::string> hf_config_text(Storage& storage, const Path& folder) {
  const Path path = folder / kConfig;
  return storage.contains(path) ? std::optional(get_text(storage, path, kLongestJson))
                                : std::nullopt;
}

std::vector<HfPart> parts_of(const HfTensor& map) {
  std::vector<HfPart> parts;
  for (const std::string& ours : map.ours) {
    if (map.entries == 0) {
      parts.push_back({ours, map.at});
    }
    for (int64_t i = 0; i < map.entries; ++i) {
      parts.push_back({ours, map.at});
      parts.back().at.push_back(i);
    }
  }
  return parts;
}

std::vector<HfTensor> mapping_of(const Architecture& architecture, TensorNames names) {
  return names == TensorNames::hugging_face ? architecture.hugging_face()
         : names == TensorNames::megatron   ? architecture.megatron()
                                            : std::vector<HfTensor>();
}

const char* program_of(TensorNames names) {
  return names == TensorNames::megatron ? "Megatron-LM" : "Hugging Face";
}

at::Tensor
hf_tensor(const HfTensor& map, const std::function<at::Tensor(const std::string& name)>& ours) {
  std::vector<at::Tensor> parts;
  for (const HfPart& one : parts_of(map)) {
    at::Tensor part = ours(one.ours);
    for (const int64_t index : one.at) {
      part = part.select(0, index);
    }
    parts.push_back(std::move(part));
  }
  at::Tensor whole = parts.front();
  if (parts.size() > 1) {
    for (at::Tensor& part : parts) {
      part = part.unflatten(0, {map.groups, part.size(0) / map.groups});
    }
    whole = at::cat(parts, 1).flatten(0, 1);
  }
  if (!map.order.empty()) {
    const at::Tensor ordered = whole.permute(map.order);
    return map.joined ? ordered.flatten(-2) : ordered;
  }
  return map.transpose ? whole.t() : whole;
}

bool is_hf_weight(const std::string& name, bool tied) {
  constexpr std::string_view kConstants[] = {
      ".attn.bias",
      ".attn.masked_bias",
      ".attention.bias",
      ".attention.masked_bias",
      ".rotary_emb.inv_freq",
      ".position_ids"};
  const auto ends = [&name](std::string_view ending) { return name.ends_with(ending); };
  constexpr std::string_view kVision[] = {"vision_tower.", "multi_modal_projector."};
  const bool sees = std::any_of(std::begin(kVision), std::end(kVision), [&name](const auto& part) {
    return name.starts_with(part) || name.starts_with("model." + std::string(part));
  });
  return std::none_of(std::begin(kConstants), std::end(kConstants), ends) && !sees &&
         !(tied && (name == "lm_head.weight" || ends(".lm_head.weight")));
}

bool is_of_further_prediction(std::string_view name, std::optional<int64_t> layers) {
  constexpr std::string_view kLayer = "model.layers.";
  if (!name.starts_with(kLayer)) {
    return name.starts_with("mtp.");
  }
  name.remove_prefix(kLayer.size());
  int64_t layer = -1;
  std::from_chars(name.data(), name.data() + name.size(), layer);
  return layers && layer >= *layers;
}

namespace {

/// None if a config.json has none.
std::optional<int64_t>
layers_of(const std::optional<std::string>& config, const std::string& where) {
  const nlohmann::json json = config ? parse_json(*config, where) : nlohmann::json::object();
  const auto found = json.is_object() ? json.find("num_hidden_layers") : json.end();
  return found != json.end() && found->is_number_integer() ? std::optional(found->get<int64_t>())
                                                           : std::nullopt;
}

} // namespace

bool ties_embeddings(const std::optional<std::string>& config, const std::string& where) {
  const nlohmann::json json = config ? parse_json(*config, where) : nlohmann::json::object();
  return json.is_object() && json.value("tie_word_embeddings", false);
}

HfFolder::HfFolder(Storage& storage, const Path& folder)
    : folder_(folder) {
  const Path index_path = folder / kIndex;
  if (storage.contains(index_path)) {
    const HfIndex index =
        read_hf_index(get_text(storage, index_path, kLongestJson), index_path.string());
    std::map<std::string, std::vector<std::string>> tensors_of;
    for (const std::string& file : index.files) {
      tensors_of[file] = add(storage, file);
    }
    check_hf_index(index, tensors_of, index_path.string());
  } else if (storage.contains(folder / kSingle)) {
    (void)add(storage, kSingle);
  } else {
    throw Error(
        folder.string() + ": neither " + kSingle + " nor " + kIndex,
        "give the folder of a model in safetensors format",
        exit_code::data
    );
  }
  const auto config = hf_config_text(storage, folder);
  const std::string where = (folder / kConfig).string();
  const bool tied = ties_embeddings(config, where);
  const auto layers = layers_of(config, where);
  for (const auto& [name, place] : places_) {
    const bool is_weight = is_hf_weight(name, tied) && !is_of_further_prediction(name, layers);
    tensors_.push_back({name, scalar_type(place.info.dtype), place.info.shape, is_weight});
  }
}

std::vector<std::string> HfFolder::add(Storage& storage, const std::string& file) {
  const Path path = folder_ / file;
  const auto opened = std::make_shared<const TensorFile>(storage.get(path), path);
  std::vector<std::string> names;
  for (const TensorInfo& info : opened->header().tensors) {
    names.push_back(info.name);
    places_.try_emplace(modern(info.name), Place{opened, info});
  }
  return names;
}

const CheckpointTensor* HfFolder::find(std::string_view name) const {
  if (const auto* tensor = CheckpointReader::find(name)) {
    return tensor;
  }
  return CheckpointReader::find(name.substr(name.find('.') + 1));
}

void HfFolder::read(std::span<const Slice> slices) {
  const at::NoGradGuard no_grad;
  for (const Slice& slice : slices) {
    const CheckpointTensor& tensor = require_fit(*this, slice);
    if (slice.local.numel() == 0) {
      continue;
    }
    const auto& [file, info] = places_.find(tensor.name)->second;
    if (info.shape.empty()) {
      slice.local.copy_(file->read(info));
      continue;
    }
    at::Tensor rows = file->rows(info, slice.offset[0], slice.local.size(0), slice.local);
    if (rows.is_same(slice.local)) {
      continue;
    }
    for (size_t d = 1; d < slice.offset.size(); ++d) {
      const auto dim = static_cast<int64_t>(d);
      rows = rows.narrow(dim, slice.offset[d], slice.local.size(dim));
    }
    slice.local.copy_(rows);
  }
}

bool HuggingFaceFormat::detect(const Path& folder) const {
  return storage_.contains(folder / kIndex) || storage_.contains(folder / kSingle);
}

std::unique_ptr<CheckpointReader>
HuggingFaceFormat::open(const Path& folder, std::optional<int64_t>) const {
  return std::make_unique<HfFolder>(storage_, folder);
}

std::optional<std::string> HuggingFaceFormat::config(const Path& folder) const {
  return hf_config_text(storage_, folder);
}

} // namespace mh
