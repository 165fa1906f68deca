#include "core/checkpoint/hf_export.hpp"

#include "core/base/printable.hpp"
#include "core/checkpoint/format.hpp"
#include "core/checkpoint/hf.hpp"
#include "core/checkpoint/tensors.hpp"
#include "core/formats/hf_index.hpp"
#include "core/import/hugging_face.hpp"
#include "core/language/json_value.hpp"
#include "core/language/read.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <memory>
#include <set>

namespace mh {

namespace {

constexpr const char* kSingleFile = "model.safetensors";
constexpr const char* kIndexFile = "model.safetensors.index.json";

/// Why a config.json that was written of a model's fields does not say them; empty if it does.
std::string
mismatch(const nlohmann::ordered_json& config, const Table& fields, const Registry::Entry& entry) {
  try {
    const Value read = read_hf_config(std::filesystem::path("config.json"), config.dump());
    const HfReading reading = read_hf_fields(read, *entry.hugging_face, entry.schema, entry.name);
    const auto differences = hf_differences(reading, fields, *entry.hugging_face, entry.schema);
    return differences.empty() ? "" : differences.front().message;
  } catch (const Error& error) { // it says what the model cannot be
    return error.what();
  }
}

/// Leaves out null where it says nothing: transformers takes no null for a size.
void drop_idle_nulls(
    nlohmann::ordered_json& ret_config, const Table& fields, const Registry::Entry& entry
) {
  const nlohmann::ordered_json all = ret_config;
  for (const auto& [key, value] : all.items()) {
    nlohmann::ordered_json without = ret_config;
    without.erase(key);
    if (value.is_null() && mismatch(without, fields, entry).empty()) {
      ret_config = std::move(without);
    }
  }
}

/// Gives the values of Hugging Face's tensors, from those of a checkpoint.
class HfValues {
public:
  HfValues(
      CheckpointReader& saved,
      std::vector<HfTensor> maps,
      TensorNames names,
      std::optional<at::ScalarType> dtype
  )
      : saved_(saved)
      , all_(std::move(maps))
      , names_(names)
      , dtype_(dtype) {
    for (const HfTensor& map : all_) {
      maps_.emplace(map.theirs, &map);
      for (const std::string& ours : map.ours) {
        uses_[ours] += map.at.empty() ? 0 : std::max<int64_t>(1, map.entries);
      }
    }
  }

  [[nodiscard]] const std::vector<HfTensor>& maps() const { return all_; }

  /// Name, dtype and shape, without its values.
  [[nodiscard]] TensorOutline outline(const HfTensor& map) const {
    const at::Tensor joined = hf_tensor(map, [&](const std::string& name) {
      const CheckpointTensor& found = tensor(name, map);
      return at::empty(found.shape, at::TensorOptions(dtype_of_part(found)).device(at::kMeta));
    });
    return {map.theirs, joined.scalar_type(), joined.sizes().vec()};
  }

  [[nodiscard]] at::Tensor value(const std::string& theirs) {
    const HfTensor& map = *maps_.at(theirs);
    return hf_tensor(map, [&](const std::string& name) { return whole(name, map); });
  }

  /// Bytes of tensors in memory at a time if theirs are asked for in the order of their names: those
  /// that are kept, those that one of theirs is made of, and what reading or making it takes besides.
  [[nodiscard]] uint64_t at_once() const {
    const std::vector<uint64_t> boxes = bytes_to_read(saved_, dtype_);
    std::map<std::string, int64_t> uses = uses_;
    std::map<std::string, uint64_t> kept;
    uint64_t most = 0, held = 0;
    for (const HfTensor& map : all_) {
      uint64_t sources = 0, reading = 0;
      for (const HfPart& part : parts_of(map)) {
        const CheckpointTensor& ours = tensor(part.ours, map);
        const uint64_t bytes = value_bytes(dtype_of_part(ours), ours.shape);
        if (kept.contains(part.ours)) {
          if (--uses[part.ours] == 0) {
            held -= kept[part.ours];
            sources += kept[part.ours]; // until this one is made
            kept.erase(part.ours);
          }
          continue;
        }
        reading = std::max(reading, boxes[index_of(saved_, ours)]);
        if (!map.at.empty() && --uses[part.ours] > 0) {
          held += kept[part.ours] = bytes;
        } else {
          sources += bytes;
        }
      }
      const TensorOutline theirs = outline(map);
      const uint64_t bytes = value_bytes(theirs.dtype, theirs.shape);
      const uint64_t joined = parts_of(map).size() > 1 ? bytes : 0;
      const uint64_t ordered = map.transpose || !map.order.empty() ? bytes : 0;
      most = std::max(most, held + sources + std::max(reading, joined + ordered));
    }
    return most;
  }

private:
  [[nodiscard]] const CheckpointTensor& tensor(const std::string& name, const HfTensor& map) const {
    const CheckpointTensor* found = saved_.find(name);
    if (found == nullptr || found->shape.size() < map.at.size() + (map.entries > 0)) {
      throw Error(
          saved_.path().string() + ": there is no tensor " + printable(name) + ", which " +
              map.theirs + " of " + program_of(names_) + " is made of",
          "the checkpoint is of another model than its recipe says, or of another version",
          exit_code::data
      );
    }
    return *found;
  }

  [[nodiscard]] at::ScalarType dtype_of_part(const CheckpointTensor& tensor) const {
    return at::isFloatingType(tensor.dtype) ? dtype_.value_or(tensor.dtype) : tensor.dtype;
  }

  /// A tensor of ours; one that several of theirs are cut from stays until the last of them.
  at::Tensor whole(const std::string& name, const HfTensor& map) {
    if (const auto kept = kept_.find(name); kept != kept_.end()) {
      const at::Tensor value = kept->second;
      if (--uses_[name] == 0) {
        kept_.erase(kept);
      }
      return value;
    }
    const CheckpointTensor& found = tensor(name, map);
    const Slice slice{
        found.name,
        found.shape,
        std::vector<int64_t>(found.shape.size()),
        at::empty(found.shape, at::TensorOptions(dtype_of_part(found)))};
    saved_.read({&slice, 1});
    if (!map.at.empty() && --uses_[name] > 0) {
      kept_[name] = slice.local;
    }
    return slice.local;
  }

  CheckpointReader& saved_;
  std::vector<HfTensor> all_;
  TensorNames names_;
  std::optional<at::ScalarType> dtype_;
  std::map<std::string, const HfTensor*> maps_; // by their name
  std::map<std::string, int64_t> uses_;         // uses of a tensor of ours that are yet to come
  std::map<std::string, at::Tensor> kept_;
};

std::string weights_file(size_t number, size_t count) {
  char name[60];
  std::snprintf(name, sizeof name, "model-%05zu-of-%05zu.safetensors", number + 1, count);
  return count == 1 ? kSingleFile : name;
}

} // namespace

HfCounterpart hf_counterpart(
    const Architecture& architecture,
    const Registry::Entry& entry,
    const Table& fields,
    const std::string& model_type
) {
  HfCounterpart found{.model_type = "", .tensors = architecture.hugging_face(), .config = {}};
  if (found.tensors.empty() || entry.hugging_face == nullptr) {
    throw Error(
        "the architecture " + entry.name + " has no counterpart at Hugging Face with this recipe",
        "its plugin maps names in hugging_face() and keys in hugging_face_config()",
        exit_code::data
    );
  }
  std::sort(found.tensors.begin(), found.tensors.end(), [](const auto& a, const auto& b) {
    return a.theirs < b.theirs;
  });
  const HfMapping& mapping = *entry.hugging_face;
  Table plain = fields;
  if (mapping.plain) {
    mapping.plain(plain);
  }
  Table given = plain; // and what was said, though it has no effect: a key may mean it all the same
  for (const auto& entry : fields) {
    const Value* value = plain.find(entry.key);
    if (value == nullptr || value->is_null()) {
      given.set(entry.key, entry.value);
    }
  }
  std::string reasons;
  for (const HfModel& model : mapping.models) {
    if (!model_type.empty() && model.model_type != model_type) {
      continue;
    }
    std::string why;
    for (const Table* written : {&plain, &given}) {
      try {
        found.config = json_value(write_hf_config(*written, model));
        why = mismatch(found.config, fields, entry);
      } catch (const Error& error) {
        why = error.what();
      }
      if (why.empty()) {
        found.model_type = model.model_type;
        drop_idle_nulls(found.config, fields, entry);
        return found;
      }
    }
    reasons += "\n  a " + model.model_type + ": " + why;
  }
  throw Error(
      reasons.empty() ? "the architecture " + entry.name + " has no model_type " + model_type
                      : "no model of Hugging Face is this one:" + reasons,
      "leave --model-type out, or see the keys of `megahost plugins show " + entry.name + "`",
      exit_code::data
  );
}

OutlinedTensors mapped_tensors(
    CheckpointReader& saved,
    const std::vector<HfTensor>& maps,
    TensorNames names,
    std::optional<at::ScalarType> dtype
) {
  const auto values = std::make_shared<HfValues>(saved, maps, names, dtype);
  OutlinedTensors outlined;
  for (const HfTensor& map : values->maps()) {
    outlined.outlines.push_back(values->outline(map));
  }
  outlined.at_once = values->at_once();
  outlined.value = [values](const std::string& theirs) { return values->value(theirs); };
  return outlined;
}

void write_hf_weights(Storage& storage, const Path& folder, const OutlinedTensors& tensors) {
  const at::NoGradGuard no_grad;
  const auto files = tensors.files();
  storage.remove(folder / kIndexFile); // left by an export that was ended
  storage.remove(folder / kSingleFile);
  std::map<std::string, std::string> file_of;
  uint64_t done = 0;
  for (size_t i = 0; i < files.size(); ++i) {
    const std::string name = weights_file(i, files.size());
    for (const TensorOutline& tensor : files[i]) {
      file_of[tensor.name] = name;
    }
    (void)write_outlined(
        storage,
        folder / name,
        files[i],
        [&](const std::string& theirs) {
          at::Tensor value = tensors.value(theirs);
          tensors.progress(done += value.nbytes());
          return value;
        },
        {{"format", "pt"}},
        Storage::Existing::replace
    );
  }
  if (files.size() > 1) {
    put_text(storage, folder / kIndexFile, hf_index_text(file_of, tensors.bytes()));
  }
}

} // namespace mh
