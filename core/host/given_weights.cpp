#include "core/host/given_weights.hpp"

#include "core/checkpoint/checkpoint.hpp"
#include "core/checkpoint/hf.hpp"
#include "core/host/model_from.hpp"
#include "core/host/report.hpp"
#include "core/storage/local.hpp"
#include "core/train/checkpointing.hpp"
#include "core/train/resume.hpp"
#include "megahost/error.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/stack.h>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstdio>
#include <map>
#include <set>

namespace mh {

namespace {

namespace fs = std::filesystem;

std::string shape_text(at::IntArrayRef shape) {
  std::string text = "[";
  for (const int64_t size : shape) {
    text += (text.size() > 1 ? ", " : "") + std::to_string(size);
  }
  return text + "]";
}

/// The leaf and the piece of a global name.
struct FoundPiece {
  Parameter* parameter = nullptr;
  const Piece* piece = nullptr;
};

FoundPiece find_piece(ParameterStore& store, const std::string& name) {
  Parameter* parameter = store.find(name);
  MH_ASSERT(parameter != nullptr, "this rank has no parameter `" + name + "`");
  const auto found =
      std::find_if(parameter->pieces.begin(), parameter->pieces.end(), [&](const Piece& piece) {
        return piece.name == name;
      });
  return {parameter, &*found};
}

/// The buffer of a global name; each rank that has its layer holds it whole.
const Buffer* find_buffer(const ParameterStore& store, const std::string& name) {
  const auto& all = store.buffers();
  const auto found = std::find_if(all.begin(), all.end(), [&](const Buffer& buffer) {
    return buffer.piece.name == name;
  });
  return found == all.end() ? nullptr : &*found;
}

/// Some checkpoints are of the bare model, without the prefix "transformer." or "model.".
std::string name_in(const HfFolder& folder, const std::string& name) {
  const std::string bare = name.substr(name.find('.') + 1);
  return folder.find(name) == nullptr && folder.find(bare) != nullptr ? bare : name;
}

/// Constants of old checkpoints, and an output layer that is the embedding.
bool needs_no_place(const HfFolder& folder, const std::string& name) {
  return name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias") ||
         name.ends_with(".rotary_emb.inv_freq") ||
         (name == "lm_head.weight" && folder.config().value("tie_word_embeddings", false));
}

/// The name of a tensor that `map` fills and this rank's pipeline stages lack; empty for none.
std::string elsewhere(ParameterStore& store, const HfTensor& map) {
  for (const std::string& name : map.ours) {
    if (store.find(name) == nullptr && find_buffer(store, name) == nullptr) {
      return name;
    }
  }
  return "";
}

void fill(
    ParameterStore& store, const HfFolder& folder, const HfTensor& map, const std::string& theirs
) {
  at::Tensor tensor = folder.tensor(theirs);
  if (map.transpose) {
    tensor = tensor.t();
  }
  const Buffer* buffer = find_buffer(store, map.ours.front());
  std::vector<int64_t> expected;
  for (const std::string& name : map.ours) {
    const Piece& piece = buffer != nullptr ? buffer->piece : *find_piece(store, name).piece;
    const auto& whole = piece.global_shape;
    const std::vector<int64_t> shape(
        whole.begin() + static_cast<int64_t>(map.at.size()), whole.end()
    );
    if (expected.empty()) {
      expected = shape;
    } else {
      expected[0] += shape[0];
    }
  }
  if (tensor.sizes() != at::IntArrayRef(expected)) {
    throw Error(
        folder.path().string() + ": " + theirs + " has the shape " +
            shape_text(folder.tensor(theirs).sizes()) + ", the recipe's model needs " +
            shape_text(
                map.transpose ? std::vector<int64_t>(expected.rbegin(), expected.rend()) : expected
            ),
        "compare the recipe's section model with config.json",
        exit_code::data
    );
  }
  if (buffer != nullptr) {
    buffer->value.copy_(tensor);
    return;
  }
  int64_t row = 0;
  for (const std::string& name : map.ours) {
    const auto [parameter, piece] = find_piece(store, name);
    const size_t first = map.at.size(); // dimension 0 of theirs
    at::Tensor part = tensor.narrow(0, row, piece->global_shape[first]);
    row += piece->global_shape[first];
    at::Tensor own = parameter->view(parameter->value.detach(), *piece);
    bool mine = true; // the entry that theirs is lies on this rank
    for (size_t i = 0; i < map.at.size(); ++i) {
      const int64_t index = map.at[i] - piece->offset[i];
      mine = mine && index >= 0 && index < piece->shape[i];
      own = mine ? own.select(0, index) : own;
    }
    if (!mine) {
      continue;
    }
    for (size_t d = first; d < piece->shape.size(); ++d) {
      part = part.narrow(static_cast<int64_t>(d - first), piece->offset[d], piece->shape[d]);
    }
    own.copy_(part);
  }
}

/// Whatever no tensor of Hugging Face fills would keep what was in memory.
void require_all_named(const ParameterStore& store, const std::vector<HfTensor>& maps) {
  std::set<std::string> named;
  for (const HfTensor& map : maps) {
    named.insert(map.ours.begin(), map.ours.end());
  }
  for (const Parameter& parameter : store.all()) {
    for (const Piece& piece : parameter.pieces) {
      if (!named.contains(piece.name)) {
        throw Error(
            "the architecture's plugin names no tensor of Hugging Face for " + piece.name,
            "this is the plugin's to mend; megahost plugins check FILE.so looks for such names",
            exit_code::other
        );
      }
    }
  }
}

/// Fills what this rank has of the model.
///
/// Returns: for each map the name of a tensor of ours that this rank lacks, or nothing
std::vector<std::string>
fill_own(const fs::path& path, Session& session, Host& host, const std::vector<HfTensor>& maps) {
  const HfFolder folder(path);
  ParameterStore& store = session.model->parameters();
  if (maps.empty()) {
    throw Error(
        "the architecture " + session.recipe.model.use + " has no counterpart at Hugging Face",
        "give a run folder",
        exit_code::data
    );
  }
  const std::string unknown =
      require_model_of_folder(path, session.recipe, session.architecture->vocab(), host);
  std::error_code ignored; // of model.from it was said at the start
  const bool said = fs::equivalent(session.recipe.model.from.value_or(""), path, ignored);
  if (!unknown.empty() && session.mesh.rank() == 0 && !said) {
    warn(unknown);
  }
  std::set<std::string> used;
  std::vector<std::string> lacking;
  for (const HfTensor& map : maps) {
    const std::string theirs = name_in(folder, map.theirs);
    if (folder.find(theirs) == nullptr) {
      throw Error(
          path.string() + " lacks the tensor " + map.theirs + ", which the recipe's model needs",
          "compare the recipe's section model with config.json",
          exit_code::data
      );
    }
    used.insert(theirs);
    lacking.push_back(elsewhere(store, map));
    if (lacking.back().empty()) {
      fill(store, folder, map, theirs);
    }
  }
  require_all_named(store, maps);
  for (const std::string& name : folder.names()) {
    if (!used.contains(name) && !needs_no_place(folder, name)) {
      throw Error(
          path.string() + " holds the tensor " + name +
              ", for which the recipe's model has no place",
          "compare the recipe's section model with config.json",
          exit_code::data
      );
    }
  }
  return lacking;
}

/// Each tensor that a map names lies on some rank.
void load_hugging_face(const fs::path& path, Session& session, Host& host) {
  const std::vector<HfTensor> maps = session.architecture->hugging_face();
  const auto texts = together(ranks_of(session.mesh.all()), [&] {
    return nlohmann::json(fill_own(path, session, host, maps)).dump();
  });
  std::vector<std::vector<std::string>> lacking; // by rank
  for (const std::string& text : texts) {
    lacking.push_back(nlohmann::json::parse(text).get<std::vector<std::string>>());
  }
  for (size_t i = 0; i < maps.size(); ++i) {
    if (std::none_of(lacking.begin(), lacking.end(), [i](const auto& names) {
          return names[i].empty();
        })) {
      throw Error(
          "the architecture's plugin maps " + maps[i].theirs + " of Hugging Face to " +
              lacking.front()[i] + ", which its model does not have",
          "this is the plugin's to mend; megahost plugins check FILE.so looks for such names",
          exit_code::other
      );
    }
  }
}

/// The tensors of a simpler model that some of ours begin with.
class Upcycling {
public:
  Upcycling(Session& session, Checkpoint& saved)
      : store_(session.model->parameters())
      , saved_(saved) {
    for (const StoredTensor& tensor : saved.manifest().tensors) {
      stored_.insert(tensor.name);
    }
    for (Upcycled& one : session.architecture->upcycled()) {
      if (!stored_.contains(one.ours)) {
        used_.insert(one.theirs.begin(), one.theirs.end());
        maps_.emplace(one.ours, std::move(one.theirs));
      }
    }
  }

  [[nodiscard]] bool makes(const std::string& ours) const { return maps_.contains(ours); }

  [[nodiscard]] bool uses(const std::string& theirs) const { return used_.contains(theirs); }

  /// Throws:  mh::Error naming the first tensor that is no part of ours
  void require_fit() const {
    for (const auto& [ours, theirs] : maps_) {
      if (theirs.empty() || store_.find(ours) == nullptr) {
        continue;
      }
      const at::IntArrayRef shape = find_piece(store_, ours).piece->global_shape;
      std::vector<int64_t> whole = shape_of(theirs.front());
      const bool alike = std::all_of(theirs.begin(), theirs.end(), [&](const std::string& name) {
        return shape_of(name) == whole;
      });
      if (theirs.size() > 1) {
        whole.insert(whole.begin(), static_cast<int64_t>(theirs.size()));
      }
      if (!alike || whole.size() > shape.size() ||
          shape.slice(shape.size() - whole.size()) != at::IntArrayRef(whole)) {
        throw Error(
            "the checkpoint's " + theirs.front() + " does not have the size of one part of " +
                ours + ", " + shape_text(shape),
            "give experts the size of the dense model's feed-forward (model.expert_hidden)",
            exit_code::data
        );
      }
    }
  }

  void fill() const {
    for (const auto& [ours, theirs] : maps_) {
      if (theirs.empty() || store_.find(ours) == nullptr) {
        continue; // initial values; or the layer lies on another stage
      }
      std::vector<at::Tensor> parts;
      for (const std::string& name : theirs) {
        parts.push_back(saved_.tensor(name));
      }
      const auto [parameter, piece] = find_piece(store_, ours);
      at::Tensor part =
          (parts.size() == 1 ? parts.front() : at::stack(parts)).expand(piece->global_shape);
      for (size_t d = 0; d < piece->shape.size(); ++d) {
        part = part.narrow(static_cast<int64_t>(d), piece->offset[d], piece->shape[d]);
      }
      parameter->view(parameter->value.detach(), *piece).copy_(part);
    }
  }

private:
  [[nodiscard]] const std::vector<int64_t>& shape_of(const std::string& name) const {
    const StoredTensor* tensor = saved_.manifest().find(name);
    if (tensor == nullptr) {
      throw Error(
          "the checkpoint lacks the tensor " + name + ", which the recipe's model begins with",
          "use the recipe of that run",
          exit_code::data
      );
    }
    return tensor->shape;
  }

  ParameterStore& store_;
  Checkpoint& saved_;
  std::set<std::string> stored_, used_;
  std::map<std::string, std::vector<std::string>> maps_; // ours, theirs
};

/// Where each value of the model lies in a checkpoint, but for those that upcycling makes.
std::vector<Slice> slices_of(Session& session, const Upcycling& upcycling) {
  std::vector<Slice> slices;
  for (Parameter& parameter : session.model->parameters().all()) {
    for (const Piece& piece : parameter.pieces) {
      slices.push_back(
          {piece.name,
           piece.global_shape,
           piece.offset,
           parameter.view(parameter.value.detach(), piece)}
      );
    }
  }
  for (const Buffer& buffer : session.model->parameters().buffers()) {
    const Piece& piece = buffer.piece;
    slices.push_back({piece.name, piece.global_shape, piece.offset, buffer.value});
  }
  std::erase_if(slices, [&](const Slice& slice) { return upcycling.makes(slice.name); });
  return slices;
}

/// Each tensor of a run's model has a place in ours; its optimizer's state is not asked for.
void require_places(
    const fs::path& path, const std::vector<std::string>& unused, const Upcycling& upcycling
) {
  for (const std::string& name : unused) {
    if (!upcycling.uses(name) && !name.starts_with("optimizer.") && !name.starts_with("fp8.")) {
      throw Error(
          path.string() + " holds the tensor " + name +
              ", for which the recipe's model has no place",
          "use the recipe of that run: " + (path / "recipe.toml").string(),
          exit_code::data
      );
    }
  }
}

/// Tensors may fit a model of other numbers: as many heads as not, another base of the positions.
void warn_of_other_model(
    const fs::path& path, const Checkpoint& saved, const Session& session, Host& host
) {
  const auto sections =
      saved.manifest().state.value("sections", std::map<std::string, std::string>());
  const std::string changes = other_model(session.recipe, host, sections);
  if (!changes.empty() && session.mesh.all().index() == 0) {
    warn("the weights in " + path.string() + " were trained as another model: " + changes);
  }
}

int64_t
load_run(const fs::path& path, Session& session, Host& host, std::optional<int64_t> wanted) {
  LocalStorage disk;
  const Ranks ranks = ranks_of(session.mesh.all());
  const StepFolder steps(disk, checkpoint_folder(path), [&ranks](const std::string& sentence) {
    if (ranks.rank == 0) {
      warn(sentence);
    }
  });
  if (wanted && disk.kind(steps.path(*wanted)) != Storage::Kind::directory) {
    throw Error(
        path.string() + " holds no checkpoint of step " + std::to_string(*wanted),
        "look into " + checkpoint_folder(path).string(),
        exit_code::data
    );
  }
  const auto judge = [&](Checkpoint& saved) {
    const Upcycling upcycling(session, saved);
    const auto slices = slices_of(session, upcycling);
    require_places(path, saved.unused(slices, ranks), upcycling);
    together(ranks, [&] {
      saved.require_fit(slices, OtherDtype::convert);
      upcycling.require_fit();
      return std::string();
    });
    warn_of_other_model(path, saved, session, host);
  };
  const auto load = [&](Checkpoint& saved) {
    const Upcycling upcycling(session, saved);
    saved.load(slices_of(session, upcycling), OtherDtype::convert);
    upcycling.fill();
  };
  const auto candidates = wanted ? std::vector{*wanted} : steps.steps();
  const auto step = load_newest(disk, steps, candidates, judge, load, ranks);
  if (!step) {
    throw Error(
        path.string() + " holds no checkpoint yet", "give a run that has saved one", exit_code::data
    );
  }
  return *step;
}

} // namespace

void require_weights(const fs::path& folder) {
  const char* hint = "give the folder that megahost run named";
  if (!fs::is_directory(folder)) {
    throw Error("there is no folder " + folder.string(), hint, exit_code::data);
  }
  if (!is_hf_folder(folder) && !fs::is_directory(checkpoint_folder(folder))) {
    throw Error(
        folder.string() +
            " is neither a run folder (no checkpoints/) nor a Hugging Face folder (no "
            "model.safetensors)",
        hint,
        exit_code::data
    );
  }
}

GivenWeights
load_weights(const fs::path& folder, Session& session, Host& host, std::optional<int64_t> wanted) {
  const at::NoGradGuard no_grad;
  const auto kinds = together(ranks_of(session.mesh.all()), [&] { // one machine may lack it
    require_weights(folder);
    return std::string(is_hf_folder(folder) ? "Hugging Face" : "run");
  });
  if (kinds.front() == "Hugging Face") {
    if (wanted) {
      throw Error(
          folder.string() + " is a Hugging Face folder, which has no steps",
          "leave --step out",
          exit_code::data
      );
    }
    load_hugging_face(folder, session, host);
    return {"Hugging Face folder " + folder.string(), true};
  }
  const int64_t step = load_run(folder, session, host, wanted);
  return {folder.string() + ", step " + std::to_string(step), false};
}

std::vector<NamedTensor> named_gradients(Session& session, bool hugging_face) {
  ParameterStore& store = session.model->parameters();
  std::vector<NamedTensor> gradients;
  const auto gradient = [&](const std::string& name) {
    const auto [parameter, piece] = find_piece(store, name);
    return parameter->view(parameter->main_grad, *piece);
  };
  if (hugging_face) {
    for (const HfTensor& map : session.architecture->hugging_face()) {
      if (find_buffer(store, map.ours.front()) != nullptr) {
        continue;
      }
      std::vector<at::Tensor> parts;
      for (const std::string& name : map.ours) {
        at::Tensor part = gradient(name);
        for (const int64_t index : map.at) {
          part = part.select(0, index);
        }
        parts.push_back(std::move(part));
      }
      const at::Tensor whole = at::cat(parts);
      gradients.push_back({map.theirs, map.transpose ? whole.t() : whole});
    }
    return gradients;
  }
  for (const Parameter& parameter : store.all()) {
    for (const Piece& piece : parameter.pieces) {
      gradients.push_back({piece.name, parameter.view(parameter.main_grad, piece)});
    }
  }
  return gradients;
}

} // namespace mh
