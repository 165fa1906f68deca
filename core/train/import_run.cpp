#include "core/train/import_run.hpp"

#include "core/base/printable.hpp"
#include "core/checkpoint/assembled.hpp"
#include "core/checkpoint/hf.hpp"
#include "core/checkpoint/mapped_slices.hpp"
#include "core/checkpoint/native.hpp"
#include "core/foreign/master_beginnings.hpp"
#include "core/formats/json.hpp"
#include "core/model/plugin_call.hpp"
#include "core/recipe/changes.hpp"
#include "core/step/weights.hpp"
#include "core/train/checkpointing.hpp"
#include "core/train/start_block.hpp"

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <map>
#include <optional>
#include <set>

namespace mh {

namespace {

constexpr const char* kMaster = "master";

/// The weights that a run stores, by name.
class StoredByName {
public:
  explicit StoredByName(const Weights& weights) {
    for (const Weights::Stored& stored : weights.stored()) {
      all_[stored.name] = &stored;
      const std::string& name = stored.piece->name;
      if (stored.name != name) { // optimizer.exp_avg.NAME
        constexpr std::string_view kBefore = "optimizer.";
        states_.insert(stored.name.substr(
            kBefore.size(), stored.name.size() - kBefore.size() - name.size() - 1
        ));
      }
    }
  }

  [[nodiscard]] const std::set<std::string>& states() const { return states_; }

  /// The parts of a state; the weights themselves if it is the master weights.
  [[nodiscard]] OwnParts parts(const std::string& state) const {
    const std::string before = state == kMaster ? "" : "optimizer." + state + ".";
    return [this, before](const std::string& name) -> OwnPart {
      const Weights::Stored& stored = *all_.at(before + name);
      return {stored.piece, stored.data};
    };
  }

  [[nodiscard]] bool has(const std::string& state, const std::string& name) const {
    return all_.contains((state == kMaster ? "" : "optimizer." + state + ".") + name);
  }

private:
  std::map<std::string, const Weights::Stored*> all_;
  std::set<std::string> states_;
};

/// Adds slices of all that the checkpoint has of these weights' state. A state that it has for one
/// tensor it must have for all.
///
/// Returns: the states that it has
std::set<std::string> add_state_slices(
    const CheckpointReader& saved,
    const std::vector<HfTensor>& maps,
    const StoredByName& stored,
    MappedSlices& ret_slices
) {
  std::set<std::string> states = stored.states();
  states.insert(kMaster);
  std::set<std::string> found;
  for (const std::string& state : states) {
    std::string lacking;
    for (const HfTensor& map : maps) {
      if (!stored.has(state, map.ours.front())) {
        continue; // a buffer, which has none
      }
      const std::string name = "optimizer." + state + "." + map.theirs;
      const CheckpointTensor* theirs = saved.find(name);
      if (theirs != nullptr) {
        found.insert(state);
        if (state != kMaster) { // which are the weights, and read as such
          add_mapped_slices(stored.parts(state), saved, *theirs, map, ret_slices);
        }
      } else if (lacking.empty()) {
        lacking = name;
      }
    }
    if (!lacking.empty() && found.contains(state)) {
      throw Error(
          saved.path().string() + " lacks the tensor " + printable(lacking) +
              ", and has others of the optimizer's state",
          "the checkpoint is damaged, or of another optimizer than the recipe's",
          exit_code::data
      );
    }
  }
  found.erase(kMaster);
  return found;
}

int64_t number_in(const nlohmann::json& arguments, const char* key, int64_t otherwise) {
  const auto found = arguments.find(key);
  return found != arguments.end() && is_json_size(*found) ? found->get<int64_t>() : otherwise;
}

Progress progress_of(const Session& session, const nlohmann::json& arguments, Host& host) {
  const Recipe& recipe = session.recipe;
  Progress progress;
  progress.step = number_in(arguments, "iteration", 0);
  progress.samples =
      number_in(arguments, "consumed_train_samples", progress.step * recipe.batch.global);
  progress.tokens = progress.samples * session.tokens_per_sample();
  progress.seed = recipe.train.seed;
  progress.threads = at::get_num_threads();
  progress.cpu_level = "another program";
  progress.plugins = used_plugins(recipe, host);
  progress.sections = section_texts(recipe.tree);
  progress.schedule = session.schedule->text();
  return progress;
}

} // namespace

ImportedRun import_run(
    const std::filesystem::path& folder,
    const std::filesystem::path& to,
    Session& session,
    Host& host,
    const WeightsWanted& wanted
) {
  const at::NoGradGuard no_grad;
  session.allocate_gradients();
  std::optional<Weights> weights;
  const auto make_weights = [&] {
    weights.reset();
    weights.emplace(
        *session.gradients, *session.optimizer, weight_options(session.recipe, session.mesh)
    );
  };
  make_weights();
  const StoredByName stored(*weights);
  std::set<std::string> found;
  MasterBeginnings beginnings;
  nlohmann::json arguments = nlohmann::json::object();
  WeightsWanted all = wanted;
  all.into = stored.parts(kMaster);
  all.also = [&](const CheckpointReader& saved, MappedSlices& ret_slices) {
    const auto maps = mapping_of(*session.architecture, saved.names());
    found = add_state_slices(saved, maps, stored, ret_slices);
    beginnings = {};
    for (const HfTensor& map : maps) {
      beginnings.add(saved, map.theirs, ret_slices.slices);
    }
    if (const std::string text = saved.arguments(); !text.empty()) {
      arguments = parse_json(text, saved.path().string());
    }
  };
  const GivenWeights given = load_weights(folder, session, host, all);
  beginnings.require_alike(given.description);
  const std::optional<int64_t> step = given.step; // a damaged folder gives not the newest
  if (given.names == TensorNames::own) {
    make_weights(); // the parameters have been filled
  }
  const bool goes_on = found == stored.states();
  if (step && !arguments.contains("iteration")) {
    arguments["iteration"] = *step;
  }
  const Progress progress = progress_of(session, arguments, host);
  std::vector<Slice> written = slices_of(*weights);
  ImportedRun imported{.from = given.description};
  if (!goes_on) {
    imported.unread = arguments.value(kUnreadState, "");
    std::erase_if(written, [](const Slice& slice) { return slice.name.starts_with("optimizer."); });
  }
  for (const Slice& slice : written) {
    ++(slice.name.starts_with("optimizer.") ? imported.state : imported.weights);
  }
  imported.step = progress.step;
  const NativeFormat native({}, {.storage = host.storage()});
  native.write(
      to, {.step = progress.step, .state = state_text(progress), .slices = written}, Ranks()
  );
  return imported;
}

} // namespace mh
