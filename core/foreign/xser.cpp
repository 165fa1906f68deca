#include "core/foreign/xser.hpp"

#include "core/base/printable.hpp"
#include "core/checkpoint/assembled.hpp"
#include "core/checkpoint/format.hpp"
#include "core/checkpoint/hf.hpp"
#include "core/foreign/torch_folder.hpp"
#include "core/foreign/xser_names.hpp"

#include <algorithm>
#include <cstdio>
#include <map>
#include <utility>

namespace mh {

namespace {

constexpr int64_t kMostXserRanks = 1 << 16;

bool is_xser_file(const Storage::Item& item) {
  return !item.is_prefix && item.name.starts_with(kXserDataRank) && item.name.ends_with(".pt") &&
         !item.name.ends_with(".info.pt");
}

/// The number of ranks of each kind, by the files in the folder `model`, of which none may lack.
XserLayout layout_of_files(Storage& storage, const Path& folder) {
  std::vector<std::string> names;
  for (const Storage::Item& item : storage.list(folder / kXserModel)) {
    if (is_xser_file(item)) {
      names.push_back(std::string(kXserModel) + "/" + item.name);
    }
  }
  XserLayout layout{0, 0};
  for (const std::string& name : names) {
    int tensor = -1, pipeline = -1;
    const size_t begin = std::string_view(kXserModel).size() + 1 + kXserDataRank.size();
    std::sscanf(name.c_str() + begin, "tp_rank_%5d_pp_rank_%5d.pt", &tensor, &pipeline);
    if (tensor < 0 || pipeline < 0 || name != xser_file(tensor, pipeline)) {
      throw Error(
          (folder / name).string() + " is not of one tensor- and pipeline-parallel rank",
          "files of expert-parallel ranks are not read",
          exit_code::data
      );
    }
    layout.tensor = std::max<int64_t>(layout.tensor, tensor + 1);
    layout.pipeline = std::max<int64_t>(layout.pipeline, pipeline + 1);
  }
  if (layout.tensor > kMostXserRanks || layout.pipeline > kMostXserRanks ||
      layout.tensor * layout.pipeline != std::ssize(names)) {
    throw Error(
        folder.string() + " holds the files of " + std::to_string(names.size()) +
            " ranks, and their numbers go up to those of " + std::to_string(layout.tensor) +
            " tensor-parallel and " + std::to_string(layout.pipeline) + " pipeline ranks",
        "bring the files of all ranks together",
        exit_code::data
    );
  }
  return layout;
}

/// Joins the tensors of ranks' files.
class XserTensors {
public:
  XserTensors(const TorchFolder& stored, const XserLayout& layout, bool tied)
      : stored_(stored)
      , ranks_(layout.tensor)
      , tied_(tied) {
    std::map<std::string, size_t> rank_of; // by the name of its file
    for (int64_t p = 0; p < layout.pipeline; ++p) {
      for (int64_t t = 0; t < layout.tensor; ++t) {
        rank_of[xser_file(t, p)] = static_cast<size_t>(t);
      }
    }
    std::map<std::string, std::vector<const CheckpointTensor*>> by_name;
    for (const CheckpointTensor& tensor : stored.tensors()) {
      const size_t colon = tensor.name.find(':');
      auto& parts = by_name[tensor.name.substr(colon + 1)];
      parts.resize(static_cast<size_t>(ranks_));
      const CheckpointTensor*& part = parts[rank_of.at(tensor.name.substr(0, colon))];
      part = part == nullptr ? &tensor : part; // else it is another stage's copy
    }
    for (const auto& [name, parts] : by_name) {
      join(name, parts);
    }
  }

  [[nodiscard]] std::vector<AssembledTensor> take() {
    std::vector<AssembledTensor> all;
    for (auto& [name, one] : found_) {
      all.push_back(std::move(one));
    }
    return all;
  }

private:
  [[noreturn]] void refuse(const std::string& name, const std::string& why) const {
    throw Error(
        stored_.path().string() + ": tensor " + printable(name) + ": " + why,
        "the checkpoint is damaged, incomplete or of another version of NeuronX Distributed",
        exit_code::data
    );
  }

  void join(const std::string& name, const std::vector<const CheckpointTensor*>& parts) {
    for (const XserTensor& known : xser_tensors()) {
      if (const auto before = before_ending(name, known.ending)) {
        join_known(name, *before, known, parts);
        return;
      }
    }
    if (name.find("qkv_proj.weight_qkv") != std::string::npos) {
      refuse(name, "how many rows of it are keys is not said; save it without fuse_qkv");
    }
    if (parts.front() != nullptr) { // constants, such as rotary_emb.inv_freq, are each rank's
      add(name, {*parts.front(), {part_of(*parts.front())}});
    }
  }

  void join_known(
      const std::string& name,
      const std::string& before,
      const XserTensor& known,
      const std::vector<const CheckpointTensor*>& parts
  ) {
    const auto joined = static_cast<int64_t>(std::max<size_t>(1, known.parts.size()));
    for (const CheckpointTensor* part : parts) {
      if (part == nullptr) {
        refuse(name, "not every tensor-parallel rank has a part of it");
      }
      if (part->shape != parts.front()->shape || part->dtype != parts.front()->dtype) {
        refuse(
            name,
            "it has the shape " + shape_text(part->shape) + " on one rank and " +
                shape_text(parts.front()->shape) + " on another"
        );
      }
    }
    const std::vector<int64_t>& shape = parts.front()->shape;
    if (std::ssize(shape) <= known.dim || (joined > 1 && shape[0] % joined != 0)) {
      refuse(name, "it has the shape " + shape_text(shape));
    }
    for (int64_t i = 0; i < joined; ++i) {
      const std::string hf =
          known.parts.empty() ? name : before + std::string(known.parts[static_cast<size_t>(i)]);
      AssembledTensor made{*parts.front(), {}};
      if (joined > 1) {
        made.tensor.shape[0] /= joined;
      }
      const auto d = static_cast<size_t>(std::max<int64_t>(0, known.dim));
      const int64_t size = known.dim < 0 ? 0 : made.tensor.shape[d];
      for (int64_t r = 0; r < (known.dim < 0 ? 1 : ranks_); ++r) {
        AssembledPart part = part_of(*parts[static_cast<size_t>(r)]);
        part.box.shape = made.tensor.shape;
        part.box.offset.assign(shape.size(), 0);
        if (known.dim >= 0) {
          part.from[0] += i * (joined > 1 ? made.tensor.shape[0] : 0);
          part.box.offset[d] = r * size;
        }
        made.parts.push_back(std::move(part));
      }
      if (known.dim >= 0) {
        made.tensor.shape[d] *= ranks_;
      }
      add(hf, std::move(made));
    }
  }

  [[nodiscard]] AssembledPart part_of(const CheckpointTensor& tensor) const {
    const std::vector<int64_t> origin(tensor.shape.size());
    return {index_of(stored_, tensor), origin, {origin, tensor.shape}};
  }

  void add(const std::string& name, AssembledTensor made) {
    made.tensor.name = name;
    made.tensor.is_weight = is_hf_weight(name, tied_);
    if (!found_.emplace(name, std::move(made)).second) {
      refuse(name, "there are two of it");
    }
  }

  const TorchFolder& stored_;
  int64_t ranks_;
  bool tied_;
  std::map<std::string, AssembledTensor> found_;
};

} // namespace

std::string XserFormat::folder_name(int64_t step) const {
  return xser_folder(step);
}

/// A converter's folder has no `done`, and no `checkpoint` either.
bool XserFormat::is_whole(const Path& folder) const {
  const auto files = storage().list(folder / kXserModel);
  return std::any_of(files.begin(), files.end(), is_xser_file) &&
         (storage().contains(folder / kXserDone) || !storage().contains(folder / kXserBegun));
}

std::string XserFormat::lacking(const Path& folder) const {
  const bool is_begun =
      storage().contains(folder / kXserBegun) && !storage().contains(folder / kXserDone);
  return is_begun ? std::string(kXserDone) : "";
}

std::unique_ptr<CheckpointReader> XserFormat::read(const Path& folder) const {
  return open_xser(storage(), folder);
}

std::optional<std::string> XserFormat::config(const Path& folder) const {
  const auto all = steps(folder);
  return hf_config_text(
      storage(), all && !all->empty() ? folder / folder_name(all->front()) : folder
  );
}

std::unique_ptr<CheckpointReader> open_xser(Storage& storage, const Path& folder) {
  const XserLayout layout = layout_of_files(storage, folder);
  std::vector<std::string> files;
  for (int64_t p = 0; p < layout.pipeline; ++p) {
    for (int64_t t = 0; t < layout.tensor; ++t) {
      files.push_back(xser_file(t, p));
    }
  }
  auto stored = std::make_unique<TorchFolder>(storage, folder, files);
  const bool tied =
      ties_embeddings(hf_config_text(storage, folder), (folder / "config.json").string());
  std::vector<AssembledTensor> tensors = XserTensors(*stored, layout, tied).take();
  return std::make_unique<AssembledReader>(
      std::move(stored), std::move(tensors), TensorNames::hugging_face, ""
  );
}

} // namespace mh
