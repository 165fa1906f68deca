#include "core/train/given_weights.hpp"

#include "core/base/printable.hpp"
#include "core/checkpoint/assembled.hpp"
#include "core/checkpoint/detect_format.hpp"
#include "core/checkpoint/format.hpp"
#include "core/checkpoint/hf.hpp"
#include "core/checkpoint/mapped_slices.hpp"
#include "core/checkpoint/model_from.hpp"
#include "core/checkpoint/shared_read.hpp"
#include "core/draw/report.hpp"
#include "core/foreign/master_beginnings.hpp"
#include "core/foreign/megatron_arguments.hpp"
#include "core/model/plugin_call.hpp"
#include "core/train/foreign_state.hpp"
#include "core/train/resume.hpp"
#include "megahost/error.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/stack.h>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <map>
#include <set>

namespace mh {

namespace {

namespace fs = std::filesystem;

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

/// The boxes of a checkpoint's tensors, and their places in this rank's model.
struct Filling {
  MappedSlices boxes;
  std::vector<std::string> used; ///< tensors of the checkpoint, on whatever rank their values lie
  /// The model's own names, on whatever rank: of what is loaded, and of what `match` or a checkpoint
  /// that lacks them leaves at initial values.
  std::set<std::string> loaded, initial;
  std::vector<HfTensor> maps{}; ///< mappings of another program's tensors that are read
  bool has_state = false;       ///< the optimizer's state is read, too

  void leave(const std::vector<std::string>& ours) { initial.insert(ours.begin(), ours.end()); }
};

OwnParts parameters_of(ParameterStore& store) {
  return [&store](const std::string& name) -> OwnPart {
    if (const Buffer* buffer = find_buffer(store, name)) {
      return {&buffer->piece, buffer->value};
    }
    const auto [parameter, piece] = find_piece(store, name);
    return {piece, parameter->view(parameter->value.detach(), *piece)};
  };
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

/// The parts of ours that keep their initial values where a checkpoint lacks them.
class FreshParts {
public:
  explicit FreshParts(const Session& session)
      : initialised_(session.initialised) {
    for (const Upcycled& one : session.architecture->upcycled()) {
      if (one.ours.ends_with('.')) {
        names_.push_back(one.ours);
      }
    }
  }

  /// Whether a tensor belongs to one.
  ///
  /// Throws:  mh::Error if it does, and nothing trains it
  [[nodiscard]] bool contain(const std::string& ours) const {
    const bool fresh = std::ranges::any_of(names_, [&](const std::string& name) {
      return ours.starts_with(name);
    });
    if (fresh && !initialised_) {
      throw Error(
          "the checkpoint lacks " + ours + ", and only a run starts it from initial values",
          "leave out of the recipe what the checkpoint does not have (model.mtp_layers), or train it",
          exit_code::data
      );
    }
    return fresh;
  }

private:
  bool initialised_;
  std::vector<std::string> names_;
};

/// Whatever no tensor of the other program fills would keep what was in memory.
void require_all_named(
    const ParameterStore& store,
    const std::vector<HfTensor>& maps,
    TensorNames names,
    const FreshParts& fresh
) {
  std::set<std::string> named;
  for (const HfTensor& map : maps) {
    named.insert(map.ours.begin(), map.ours.end());
  }
  for (const Parameter& parameter : store.all()) {
    for (const Piece& piece : parameter.pieces) {
      if (!named.contains(piece.name) && !fresh.contain(piece.name)) {
        throw Error(
            "the architecture's plugin names no tensor of " + std::string(program_of(names)) +
                " for " + piece.name,
            "this is the plugin's to mend; megahost plugins check of its file looks for such names",
            exit_code::other
        );
      }
    }
  }
}

void require_counterpart(
    const Session& session, const std::vector<HfTensor>& maps, TensorNames names
) {
  if (maps.empty()) {
    throw Error(
        "a model of the architecture " + session.recipe.model.use +
            " with these fields has no counterpart " +
            (names == TensorNames::megatron ? "among Megatron-LM's GPT models" : "at Hugging Face"),
        names == TensorNames::megatron
            ? "give a run folder, or the fields that Megatron-LM's arguments mean (megahost recipe "
              "import-args)"
            : "give a run folder, or the fields of the folder's config.json (megahost recipe from-hf)",
        exit_code::data
    );
  }
}

/// Reads tensors by another program's names.
Filling filling_by_map(
    const CheckpointReader& saved,
    Session& session,
    const std::vector<HfTensor>& maps,
    const WeightsWanted& wanted,
    const StoredParts* stored,
    std::vector<std::string>& ret_lacking
) {
  ParameterStore& store = session.model->parameters();
  const OwnParts into =
      stored != nullptr ? stored->parts(StoredParts::kMaster) : parameters_of(store);
  const FreshParts fresh(session);
  Filling filling;
  for (HfTensor map : maps) {
    if (map.repeats) { // another one is read
      const CheckpointTensor* copy = saved.find(map.theirs);
      filling.used.push_back(copy != nullptr ? copy->name : "");
      ret_lacking.emplace_back();
      continue;
    }
    const auto name = wanted.match.theirs(map.theirs, map.ours);
    const std::string away = elsewhere(store, map);
    const CheckpointTensor* theirs = saved.find(name.value_or(map.theirs));
    if (!name || (theirs == nullptr && !wanted.strict)) {
      filling.leave(map.ours);
      filling.used.push_back(theirs != nullptr ? theirs->name : "");
      ret_lacking.push_back(away);
      continue;
    }
    map.theirs = *name;
    filling.loaded.insert(map.ours.begin(), map.ours.end());
    if (theirs == nullptr && is_packed(saved, map)) {
      filling.used.push_back(saved.find(map.theirs + "_blocks")->name);
      filling.used.push_back(saved.find(map.theirs + "_scales")->name);
      ret_lacking.push_back(away);
      if (away.empty()) {
        add_packed_slice(into, saved, map, filling.boxes);
      }
      continue;
    }
    if (theirs == nullptr && std::ranges::all_of(map.ours, [&](const std::string& ours) {
          return fresh.contain(ours);
        })) {
      ret_lacking.push_back(away);
      continue;
    }
    if (theirs == nullptr) {
      throw Error(
          saved.path().string() + " lacks the tensor " + map.theirs +
              ", which the recipe's model needs",
          compare_hint(saved.names()),
          exit_code::data
      );
    }
    filling.used.push_back(theirs->name);
    filling.maps.push_back(map);
    ret_lacking.push_back(away);
    if (away.empty()) {
      const CheckpointTensor* master =
          stored != nullptr ? saved.find("optimizer.master." + map.theirs) : nullptr;
      add_mapped_slices(into, saved, master != nullptr ? *master : *theirs, map, filling.boxes);
    }
  }
  require_all_named(store, maps, saved.names(), fresh);
  return filling;
}

/// Each tensor that a map names lies on some rank.
void require_all_there(
    const std::vector<HfTensor>& maps,
    TensorNames names,
    const std::vector<std::string>& own_lacking,
    const Ranks& ranks
) {
  std::vector<std::vector<std::string>> lacking; // by rank
  for (const std::string& text :
       together(ranks, [&] { return nlohmann::json(own_lacking).dump(); })) {
    lacking.push_back(nlohmann::json::parse(text).get<std::vector<std::string>>());
  }
  for (size_t i = 0; i < maps.size(); ++i) {
    if (std::none_of(lacking.begin(), lacking.end(), [i](const auto& names) {
          return names[i].empty();
        })) {
      throw Error(
          "the architecture's plugin maps " + maps[i].theirs + " of " + program_of(names) + " to " +
              lacking.front()[i] + ", which its model does not have",
          "this is the plugin's to mend; megahost plugins check of its file looks for such names",
          exit_code::other
      );
    }
  }
}

/// The tensors of a simpler model that some of ours begin with.
class Upcycling {
public:
  Upcycling(Session& session, CheckpointReader& saved)
      : store_(session.model->parameters())
      , saved_(saved)
      , fresh_(session) {
    for (Upcycled& one : session.architecture->upcycled()) {
      if (!one.ours.ends_with('.') && saved.find(one.ours) == nullptr) {
        used_.insert(one.theirs.begin(), one.theirs.end());
        maps_.emplace(one.ours, std::move(one.theirs));
      }
    }
  }

  [[nodiscard]] bool makes(const std::string& ours) const {
    return maps_.contains(ours) || (saved_.find(ours) == nullptr && fresh_.contain(ours));
  }

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
        parts.push_back(whole_tensor(saved_, name));
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
    const CheckpointTensor* tensor = saved_.find(name);
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
  CheckpointReader& saved_;
  FreshParts fresh_;
  std::set<std::string> used_;
  std::map<std::string, std::vector<std::string>> maps_; // ours, theirs
};

/// A tensor that this rank asks a checkpoint for by the parameters' own names.
struct AskedTensor {
  Slice slice;
  std::string of; ///< the parameter whose weights or state it is
};

std::vector<AskedTensor>
asked_of(Session& session, const WeightsWanted& wanted, const StoredParts* parts) {
  std::vector<AskedTensor> asked;
  const auto add = [&](const std::string& name, const Piece& piece, const at::Tensor& value) {
    asked.push_back({{name, piece.global_shape, piece.offset, value}, piece.name});
  };
  if (wanted.weights != nullptr) {
    for (const Weights::Stored& stored : wanted.weights->stored()) {
      add(stored.name, *stored.piece, parts->value(stored.name));
    }
    return asked;
  }
  for (Parameter& parameter : session.model->parameters().all()) {
    for (const Piece& piece : parameter.pieces) {
      add(piece.name, piece, parameter.view(parameter.value.detach(), piece));
    }
  }
  for (const Buffer& buffer : session.model->parameters().buffers()) {
    add(buffer.piece.name, buffer.piece, buffer.value);
  }
  return asked;
}

/// The slices that fill them, by the checkpoint's names, but for those that upcycling makes.
Filling filling_by_own_names(
    const CheckpointReader& saved,
    Session& session,
    const WeightsWanted& wanted,
    const StoredParts* stored,
    const std::optional<Upcycling>& upcycling
) {
  Filling filling;
  std::vector<AskedTensor> asked = asked_of(session, wanted, stored);
  const bool weights_only =
      wanted.later && std::ranges::none_of(asked, [&saved](const AskedTensor& one) {
        return one.slice.name != one.of && saved.find(one.slice.name) != nullptr;
      });
  for (AskedTensor& one : asked) {
    const bool is_weight = one.slice.name == one.of;
    if (one.slice.local.numel() == 0 || (upcycling && upcycling->makes(one.slice.name)) ||
        (weights_only && !is_weight)) {
      continue;
    }
    filling.has_state = filling.has_state || !is_weight;
    const std::string before = one.slice.name.substr(0, one.slice.name.size() - one.of.size());
    const auto theirs = wanted.match.theirs(one.of);
    if (!theirs || (!wanted.strict && saved.find(before + *theirs) == nullptr)) {
      filling.leave(is_weight ? std::vector{one.of} : std::vector<std::string>());
      continue;
    }
    if (is_weight) {
      filling.loaded.insert(one.of);
    }
    one.slice.name = before + *theirs;
    filling.boxes.slices.push_back(std::move(one.slice));
  }
  return filling;
}

/// Fills a session's model from a checkpoint, in two steps: whether they belong together, and the
/// values.
class Loading {
public:
  Loading(
      const fs::path& folder,
      const CheckpointFormat& format,
      Session& session,
      Host& host,
      const WeightsWanted& wanted
  )
      : folder_(folder)
      , wanted_(wanted)
      , allowed_(wanted.allow_change)
      , partial_(!wanted.strict || !wanted.match.empty())
      , format_(format)
      , session_(session)
      , host_(host)
      , ranks_(ranks_of(session.mesh.all())) {
    if (!wanted.strict) { // what differs is said, and what does not fit in shape is refused
      allowed_.insert(allowed_.end(), {"model", "tokenizer"});
    }
    if (wanted.weights != nullptr) {
      stored_.emplace(*wanted.weights, session.model->parameters());
    }
  }

  void open(std::optional<int64_t> step) {
    saved_ = in_plugin(format_, "open", [&] { return format_.open(folder_, step); });
  }

  /// Ranks:   all
  void judge() {
    const auto config = in_plugin(format_, "config", [&] { return format_.config(folder_); });
    upcycling_.reset();
    if (const TensorNames names = saved_->names(); names != TensorNames::own) {
      const auto maps = mapping_of(*session_.architecture, names);
      std::vector<std::string> lacking;
      together(ranks_, [&] {
        require_same_model(config); // which names the fields, before what they leave without names
        require_counterpart(session_, maps, names);
        require_same_arguments();
        filling_ = filling_by_map(*saved_, session_, maps, wanted_, stored(), lacking);
        return std::string();
      });
      add_state();
      judge_parts(maps);
      require_places();
      require_all_there(maps, names, lacking, ranks_);
      return;
    }
    if (wanted_.weights == nullptr) {
      upcycling_.emplace(session_, *saved_);
    }
    filling_ = filling_by_own_names(*saved_, session_, wanted_, stored(), upcycling_);
    judge_parts({});
    const auto unused = unused_tensors(*saved_, filling_.boxes.slices, ranks_);
    const std::set<std::string> free(unused.begin(), unused.end());
    for (const CheckpointTensor& tensor : saved_->tensors()) {
      const bool upcycles = upcycling_ && upcycling_->uses(tensor.name);
      if (!free.contains(tensor.name) || upcycles || is_left(tensor.name)) {
        filling_.used.push_back(tensor.name);
      }
    }
    require_places();
    together(ranks_, [&] {
      require_same_model(config);
      for (const Slice& slice : filling_.boxes.slices) {
        if (const std::string why = misfit(*saved_, slice); !why.empty()) {
          refuse("does not fit the recipe's model: " + why);
        }
      }
      if (upcycling_) {
        upcycling_->require_fit();
      }
      return std::string();
    });
    require_same_recipe();
  }

  /// `has_older`: there is another one, which is loaded if this one is damaged.
  void load(bool has_older = false) {
    in_plugin(format_, "read", [&] {
      if (wanted_.later) { // what is real already is compared
        MappedSlices real = filling_.boxes;
        std::erase_if(real.slices, [](const Slice& one) { return one.local.is_meta(); });
        saved_->read(real.slices);
        if (const auto damages =
                has_older ? saved_->verify([](uint64_t) {}).damages : std::vector<std::string>();
            !damages.empty()) {
          throw Error(damages.front(), "", exit_code::data);
        }
        return;
      }
      say_load(*saved_, filling_.boxes, ranks_);
      if (saved_->names() == TensorNames::own) {
        read_together(*saved_, filling_.boxes.slices, ranks_);
      } else {
        read_mapped(*saved_, filling_.boxes);
      }
    });
    if (upcycling_) {
      upcycling_->fill();
    }
  }

  [[nodiscard]] GivenWeights
  result(const std::string& from, std::optional<int64_t> step, FolderFormat& ret_format) {
    beginnings_.require_alike(from);
    GivenWeights given{
        .description = from,
        .names = saved_->names(),
        .step = step,
        .state = saved_->state(),
        .arguments = saved_->arguments(),
        .has_optimizer = filling_.has_state,
        .notes = notes_};
    if (wanted_.later) {
      wanted_.later({std::move(ret_format), std::move(saved_), stored_->by_tensor(filling_.boxes)});
    }
    return given;
  }

private:
  [[noreturn]] void refuse(const std::string& why) const {
    const std::string changes = texts_of(other_keys());
    throw Error(
        folder_.string() + " " + why + (changes.empty() ? "" : "; the recipe has " + changes),
        saved_->state().empty()
            ? compare_hint(saved_->names()) + wanted_.advice
            : "use the recipe of that run, " + (folder_ / "recipe.toml").string() + wanted_.advice,
        exit_code::data
    );
  }

  /// See `other_model`; none where no run of ours has saved.
  [[nodiscard]] std::vector<KeyChange> other_keys() const {
    if (saved_->state().empty()) {
      return {};
    }
    const auto sections = nlohmann::json::parse(saved_->state())
                              .value("sections", std::map<std::string, std::string>());
    return other_model(session_.recipe, host_, sections, session_.tokenizer->vocab());
  }

  [[nodiscard]] const StoredParts* stored() const { return stored_ ? &*stored_ : nullptr; }

  /// Adds another program's state of the optimizer, and the beginnings of masters, which are compared
  /// with the weights.
  ///
  /// Ranks:   all
  void add_state() {
    if (!stored_) {
      return;
    }
    std::set<std::string> lacking = stored_->states();
    beginnings_ = {};
    for (const std::string& text : together(ranks_, [&] {
           const auto found = add_state_slices(*saved_, filling_.maps, *stored_, filling_.boxes);
           return nlohmann::json(found).dump();
         })) {
      for (const std::string& found : nlohmann::json::parse(text).get<std::set<std::string>>()) {
        lacking.erase(found);
      }
    }
    for (const HfTensor& map : filling_.maps) {
      beginnings_.add(*saved_, map.theirs, filling_.boxes.slices);
    }
    filling_.has_state = lacking.empty();
    if (!lacking.empty() && !wanted_.later) {
      const auto known = nlohmann::json::parse(saved_->arguments(), nullptr, false);
      const std::string why = known.is_object() ? known.value(kUnreadState, "") : "";
      throw Error(
          "load.optimizer: " + saved_->path().string() + " holds no " + *lacking.begin() +
              ", which the recipe's optimizer " + session_.recipe.optimizer.use + " keeps" +
              (why.empty() ? "" : ": " + why),
          "leave load.optimizer out: its weights are read",
          exit_code::data
      );
    }
  }

  /// Finds what all ranks load and leave, where not everything need be loaded. `maps`: those of
  /// another program.
  void judge_parts(const std::vector<HfTensor>& maps) {
    notes_.clear();
    if (!partial_) {
      return;
    }
    for (const std::string& text : together(ranks_, [&] {
           return nlohmann::json::array({filling_.loaded, filling_.initial}).dump();
         })) {
      const auto parts = nlohmann::json::parse(text).get<std::array<std::set<std::string>, 2>>();
      filling_.loaded.insert(parts[0].begin(), parts[0].end());
      filling_.initial.insert(parts[1].begin(), parts[1].end());
    }
    std::vector<std::string> initial(filling_.initial.begin(), filling_.initial.end());
    std::vector<std::string> names(filling_.loaded.begin(), filling_.loaded.end());
    names.insert(names.end(), initial.begin(), initial.end());
    const size_t all = names.size();
    for (const HfTensor& map : maps) {
      names.push_back(map.theirs);
    }
    wanted_.match.require_all_fit(names);
    if (filling_.loaded.empty()) {
      refuse("has no tensor that the recipe's model asks for");
    }
    notes_.push_back(
        std::to_string(filling_.loaded.size()) + " of the model's " + std::to_string(all) +
        " tensors were loaded" +
        (initial.empty() ? "" : ", at their initial values are " + some_names(initial))
    );
  }

  [[nodiscard]] bool is_left(const std::string& name) const {
    return !wanted_.match.empty() && filling_.initial.contains(name);
  }

  /// Each weight of the checkpoint has a place in the model.
  void require_places() {
    const std::set<std::string> used(filling_.used.begin(), filling_.used.end());
    std::vector<std::string> without;
    size_t modules = 0; // modules of multi-token prediction
    for (const CheckpointTensor& tensor : saved_->tensors()) {
      if (tensor.is_weight && !used.contains(tensor.name)) {
        without.push_back(tensor.name);
      }
      modules += !tensor.is_weight && tensor.name.ends_with(".eh_proj.weight") &&
                 !used.contains(tensor.name);
    }
    if (modules > 0) {
      notes_.push_back(
          "modules of multi-token prediction in the checkpoint that the recipe's model does not have: " +
          std::to_string(modules) + " (model.mtp_layers)"
      );
    }
    if (!without.empty() && wanted_.strict) {
      refuse("holds the tensor " + without.front() + ", for which the recipe's model has no place");
    }
    if (!without.empty()) {
      notes_.push_back("no place in the model is for the checkpoint's " + some_names(without));
    }
  }

  /// The model that the folder's config.json describes.
  void require_same_model(const std::optional<std::string>& config) const {
    if (saved_->names() == TensorNames::megatron ||
        (!config && saved_->names() != TensorNames::hugging_face)) {
      return;
    }
    const FolderWarnings found = require_model_of_folder(
        folder_, config, session_.recipe, session_.architecture->vocab(), allowed_, host_
    );
    std::error_code ignored; // what concerns model.from was said at the start
    const bool said = fs::equivalent(session_.recipe.model.from.value_or(""), folder_, ignored);
    if (!found.unknown.empty() && session_.mesh.rank() == 0 && !said) {
      warn(found.unknown);
    }
    for (const std::string& sentence : {found.longer, found.allowed}) {
      if (!sentence.empty() && session_.mesh.rank() == 0) {
        warn(sentence);
      }
    }
  }

  /// Refuses weights whose arguments of Megatron-LM contradict the recipe's model.
  void require_same_arguments() const {
    if (saved_->arguments().empty()) {
      return;
    }
    const auto differences = argument_differences(
        nlohmann::json::parse(saved_->arguments()), session_.recipe.model.options.as_table()
    );
    if (!differences.empty() && wanted_.strict) {
      std::string text = "the recipe's model is not that of " + saved_->path().string() + ":";
      for (const std::string& one : differences) {
        text += "\n  " + one;
      }
      throw Error(text, compare_hint(saved_->names()), exit_code::data);
    }
  }

  /// Tensors may fit a model of other numbers: fewer heads, another base of the positions.
  void require_same_recipe() const {
    const std::string another =
        "the weights in " + folder_.string() + " were trained as another model: ";
    const auto changes = other_keys();
    auto refused = changes;
    std::erase_if(refused, [&](const auto& change) { return is_allowed(allowed_, change.key); });
    if (!refused.empty()) {
      throw Error(
          another + texts_of(refused),
          "use the recipe of that run, " + (folder_ / "recipe.toml").string() +
              "; to mean it, add" + allowing(refused),
          exit_code::data
      );
    }
    if (!changes.empty() && ranks_.rank == 0) {
      warn(another + texts_of(changes));
    }
  }

  const fs::path& folder_;
  const WeightsWanted& wanted_;
  std::vector<std::string> allowed_; // keys and sections that may differ
  bool partial_;                     // not everything need be loaded
  const CheckpointFormat& format_;
  Session& session_;
  Host& host_;
  Ranks ranks_;
  std::unique_ptr<CheckpointReader> saved_;
  std::optional<StoredParts> stored_;
  std::optional<Upcycling> upcycling_;
  Filling filling_;
  MasterBeginnings beginnings_;
  std::vector<std::string> notes_;
};

} // namespace

WeightsWanted
weights_wanted(const Recipe::Load& load, const std::vector<std::string>& allow_change) {
  return {
      .format = load.format,
      .step = load.step,
      .allow_change = allow_change,
      .match = TensorMatch(load.match),
      .advice =
          "; load.match leaves tensors at their initial values, load.strict = false those that "
          "are missing",
      .strict = load.strict};
}

GivenWeights
load_weights(const fs::path& folder, Session& session, Host& host, const WeightsWanted& wanted) {
  const at::NoGradGuard no_grad;
  const Ranks ranks = ranks_of(session.mesh.all());
  const auto names = together(ranks, [&] { // one machine may lack the folder
    return format_of(folder, host, wanted.format).name;
  });
  FolderFormat found = format_of(folder, host, names.front());
  const auto& format = found.format;
  Loading loading(folder, *format, session, host, wanted);
  const auto steps = steps_of(*format, folder);
  if (!steps) {
    if (wanted.step) {
      throw Error(
          folder.string() + " is a " + format->about() + ", which has no steps",
          "leave --step out",
          exit_code::data
      );
    }
    together(ranks, [&] {
      loading.open(std::nullopt);
      return std::string();
    });
    loading.judge();
    together(ranks, [&] {
      loading.load();
      return std::string();
    });
    return loading.result(format->about() + " " + folder.string(), std::nullopt, found);
  }
  const auto place = format->place(folder);
  if (wanted.step && std::find(steps->begin(), steps->end(), *wanted.step) == steps->end()) {
    throw Error(
        folder.string() + " holds no checkpoint of step " + std::to_string(*wanted.step),
        "look into " + place.string(),
        exit_code::data
    );
  }
  const auto candidates = wanted.step ? std::vector{*wanted.step} : *steps;
  const LoadAttempt attempt{
      .open = [&](int64_t step) { loading.open(step); },
      .judge = [&] { loading.judge(); },
      .load = [&] { loading.load(candidates.size() > 1); }};
  const auto say = [&ranks](const std::string& sentence) {
    if (ranks.rank == 0) {
      warn(sentence);
    }
  };
  const auto step = load_newest(place, candidates, attempt, say, ranks);
  if (!step) {
    throw Error(
        folder.string() + " holds no checkpoint yet",
        "give a run that has saved one",
        exit_code::data
    );
  }
  return loading.result(folder.string() + ", step " + std::to_string(*step), step, found);
}

std::vector<NamedTensor> named_gradients(Session& session, TensorNames names) {
  ParameterStore& store = session.model->parameters();
  std::vector<NamedTensor> gradients;
  const auto gradient = [&](const std::string& name) {
    const auto [parameter, piece] = find_piece(store, name);
    return parameter->view(parameter->main_grad, *piece);
  };
  if (names != TensorNames::own) {
    for (const HfTensor& map : mapping_of(*session.architecture, names)) {
      if (map.repeats) {
        continue;
      }
      if (find_buffer(store, map.ours.front()) != nullptr) {
        continue;
      }
      gradients.push_back({map.theirs, hf_tensor(map, gradient)});
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
