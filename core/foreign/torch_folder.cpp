#include "core/foreign/torch_folder.hpp"

#include "core/base/printable.hpp"
#include "core/checkpoint/format.hpp"
#include "core/checkpoint/hf.hpp"
#include "core/checkpoint/tensors.hpp"
#include "core/formats/hf_index.hpp"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <array>

namespace mh {

namespace {

constexpr const char* kTorchSingle = "pytorch_model.bin";
constexpr const char* kTorchIndex = "pytorch_model.bin.index.json";
constexpr std::string_view kEndings[] = {".pt", ".pth", ".bin"};
constexpr uint64_t kLongestIndex = 100 << 20;

/// The prefixes that state_dicts are saved with, and that bare ones lack.
constexpr std::string_view kWithin[] = {"model.", "module.", "state_dict."};
constexpr std::string_view kNoWeights[] = {
    "optimizer.",
    "optim.",
    "optimizer_states.",
    "fp8.",
    "lr_scheduler.",
    "lr_schedulers.",
    "dataloader.",
    "train_state.",
    "rng_state.",
    "args.",
    "rerun_state_machine."};

/// The names of the files that hold tensors; nothing if the folder is none of this format.
std::vector<std::string> files_with_tensors(Storage& storage, const Path& folder) {
  std::vector<std::string> found;
  bool has_folders = false; // then it is more than one state_dict, such as a run's folder
  for (const Storage::Item& item : storage.list(folder)) {
    has_folders = has_folders || item.is_prefix;
    if (item.name.ends_with(".safetensors") || item.name == ".metadata") {
      return {};
    }
    if (item.name == kTorchSingle || item.name == kTorchIndex) {
      return {item.name};
    }
    if (!item.is_prefix &&
        std::any_of(std::begin(kEndings), std::end(kEndings), [&](std::string_view ending) {
          return item.name.ends_with(ending);
        })) {
      found.push_back(item.name);
    }
  }
  return found.size() == 1 && !has_folders ? found : std::vector<std::string>();
}

} // namespace

bool is_weight_name(std::string_view name) {
  return std::none_of(std::begin(kNoWeights), std::end(kNoWeights), [name](std::string_view part) {
    return name.starts_with(part);
  });
}

const CheckpointTensor* find_within(const CheckpointReader& saved, std::string_view name) {
  const auto& all = saved.tensors();
  const auto as_it_is = [&all](std::string_view wanted) -> const CheckpointTensor* {
    const auto at = std::lower_bound(
        all.begin(),
        all.end(),
        wanted,
        [](const CheckpointTensor& tensor, std::string_view other) { return tensor.name < other; }
    );
    return at != all.end() && at->name == wanted ? &*at : nullptr;
  };
  for (const std::string_view bare : {name, name.substr(name.find('.') + 1)}) {
    if (const CheckpointTensor* found = as_it_is(bare)) {
      return found;
    }
    for (const std::string_view within : kWithin) {
      if (const CheckpointTensor* found = as_it_is(std::string(within).append(bare))) {
        return found;
      }
    }
  }
  return nullptr;
}

TorchFolder::TorchFolder(Storage& storage, const Path& folder)
    : storage_(storage)
    , folder_(folder) {
  std::vector<std::string> names = files_with_tensors(storage, folder);
  if (names.empty()) {
    throw Error(
        folder.string() + ": neither " + kTorchSingle + " nor one file of torch.save",
        "give the folder of one state_dict",
        exit_code::data
    );
  }
  if (names.front() == kTorchIndex) {
    const Path index = folder / kTorchIndex;
    names = read_hf_index(get_text(storage, index, kLongestIndex), index.string()).files;
  }
  open(names, /*with_file=*/false);
  list(ties_embeddings(hf_config_text(storage, folder), (folder / "config.json").string()));
}

TorchFolder::TorchFolder(
    Storage& storage, const Path& folder, const std::vector<std::string>& files
)
    : storage_(storage)
    , folder_(folder) {
  open(files, /*with_file=*/true);
  list(/*tied=*/false);
}

void TorchFolder::open(const std::vector<std::string>& names, bool with_file) {
  for (const std::string& name : names) {
    std::shared_ptr<ReadFile> file = storage_.get(folder_ / name);
    const uint64_t size = file->size();
    files_.push_back(open_torch_file(std::move(file), folder_ / name, "", 0, size));
    file_names_.push_back(name);
    add(files_.back().root(), with_file ? name + ":" : "", files_.size() - 1);
  }
}

void TorchFolder::list(bool tied) {
  for (const auto& [name, place] : places_) {
    tensors_.push_back(
        {name,
         scalar_type(place.tensor.dtype),
         place.tensor.shape,
         is_weight_name(name) && is_hf_weight(name, tied)}
    );
  }
}

TorchFile TorchFolder::file_apart(const std::string& name) const {
  std::shared_ptr<ReadFile> file = storage_.get(folder_ / name);
  const uint64_t size = file->size();
  return open_torch_file(std::move(file), folder_ / name, "", 0, size);
}

void TorchFolder::add_apart(const PickleValue& reference, const std::string& name, size_t file) {
  const PickleValue* id = reference.get("tid");
  const Pickle& pickle = files_[file].pickle();
  if (id == nullptr || !id->is(PickleKind::integer) || id->integer < 0) {
    pickle.refuse(reference, "tensor " + printable(name) + " is a reference without a number");
  }
  const std::string apart =
      file_names_[file] + ".tensors/tensor_" + std::to_string(id->integer) + ".pt";
  if (!storage_.contains(folder_ / apart)) {
    pickle.refuse(
        reference,
        "tensor " + printable(name) + " is in " + (folder_ / apart).string() +
            ", which is not there"
    );
  }
  const TorchFile opened = file_apart(apart);
  if (!places_.emplace(name, Place{file, opened.tensor(opened.root()), apart}).second) {
    pickle.refuse(reference, "a tensor " + printable(name) + " that there is already");
  }
}

/// The pickle's depth is bounded, so this is, too.
void TorchFolder::add(const PickleValue& value, const std::string& name, size_t file) {
  const TorchFile& in = files_[file];
  if (TorchFile::is_tensor(value)) {
    if (!places_.emplace(name, Place{file, in.tensor(value)}).second) {
      in.pickle().refuse(value, "a tensor " + printable(name) + " that there is already");
    }
    return;
  }
  if (value.is(PickleKind::object) && value.text.ends_with(".TensorReference")) {
    add_apart(value, name, file);
    return;
  }
  for (size_t i = 0; value.is(PickleKind::dict) && i + 1 < value.items.size(); i += 2) {
    const PickleValue& key = *value.items[i];
    if (key.is(PickleKind::text) || key.is(PickleKind::integer)) {
      const std::string part =
          key.is(PickleKind::text) ? std::string(key.text) : std::to_string(key.integer);
      add(*value.items[i + 1],
          name.empty() || name.ends_with(':') ? name + part : name + "." + part,
          file);
    }
  }
}

const CheckpointTensor* TorchFolder::find(std::string_view name) const {
  return find_within(*this, name);
}

void TorchFolder::read(std::span<const Slice> slices) {
  const at::NoGradGuard no_grad;
  for (const Slice& slice : slices) {
    const CheckpointTensor& tensor = require_fit(*this, slice);
    if (slice.local.numel() == 0) {
      continue;
    }
    const Place& place = places_.find(tensor.name)->second;
    const bool has_rows = !slice.offset.empty();
    const auto rows_of = [&](const TorchFile& file) {
      return torch_rows(
          file,
          place.tensor,
          has_rows ? slice.offset[0] : 0,
          has_rows ? slice.local.size(0) : 1,
          slice.local
      );
    };
    at::Tensor rows =
        place.apart.empty() ? rows_of(files_[place.file]) : rows_of(file_apart(place.apart));
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

Verification TorchFolder::verify(const std::function<void(uint64_t bytes)>& read) {
  Verification found{.checksums = true};
  const auto look = [&](const auto& open_file) {
    try {
      for (std::string& damage : torch_damages(open_file(), read)) {
        found.damages.push_back(std::move(damage));
      }
    } catch (const Error& error) {
      found.damages.emplace_back(error.what());
    }
  };
  for (const TorchFile& file : files_) {
    look([&file]() -> const TorchFile& { return file; });
  }
  for (const auto& [name, place] : places_) {
    if (!place.apart.empty()) {
      look([&, &apart = place.apart] { return file_apart(apart); });
    }
  }
  return found;
}

bool TorchFormat::detect(const Path& folder) const {
  return !files_with_tensors(storage_, folder).empty();
}

std::unique_ptr<CheckpointReader>
TorchFormat::open(const Path& folder, std::optional<int64_t>) const {
  return std::make_unique<TorchFolder>(storage_, folder);
}

std::optional<std::string> TorchFormat::config(const Path& folder) const {
  return hf_config_text(storage_, folder);
}

} // namespace mh
