#include "core/train/import_run.hpp"

#include "core/base/printable.hpp"
#include "core/checkpoint/detect_format.hpp"
#include "core/checkpoint/hf.hpp"
#include "core/checkpoint/native.hpp"
#include "core/formats/json.hpp"
#include "core/model/plugin_call.hpp"
#include "core/recipe/changes.hpp"
#include "core/step/weights.hpp"
#include "core/train/checkpointing.hpp"
#include "core/train/mapped_slices.hpp"
#include "core/train/start_block.hpp"

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <map>
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

/// Slices of all that the checkpoint has of these weights' state. A state that it has for one
/// tensor it must have for all.
MappedSlices state_slices(
    const CheckpointReader& saved,
    const std::vector<HfTensor>& maps,
    const StoredByName& stored,
    std::set<std::string>& ret_found
) {
  std::set<std::string> states = stored.states();
  states.insert(kMaster);
  MappedSlices slices;
  for (const std::string& state : states) {
    std::string lacking;
    for (const HfTensor& map : maps) {
      if (!stored.has(state, map.ours.front())) {
        continue; // a buffer, which has none
      }
      const std::string name = "optimizer." + state + "." + map.theirs;
      const CheckpointTensor* theirs = saved.find(name);
      if (theirs != nullptr) {
        ret_found.insert(state);
        add_mapped_slices(stored.parts(state), saved, *theirs, map, slices);
      } else if (lacking.empty()) {
        lacking = name;
      }
    }
    if (!lacking.empty() && ret_found.contains(state)) {
      throw Error(
          saved.path().string() + " lacks the tensor " + printable(lacking) +
              ", and has others of the optimizer's state",
          "the checkpoint is damaged, or of another optimizer than the recipe's",
          exit_code::data
      );
    }
  }
  return slices;
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
  const GivenWeights given = load_weights(folder, session, host, wanted);
  const std::optional<int64_t> step = given.step; // a damaged folder gives not the newest
  session.allocate_gradients();
  const Weights weights(
      *session.gradients, *session.optimizer, weight_options(session.recipe, session.mesh)
  );
  const auto format = format_of(folder, host, wanted.format).format;
  const auto saved = in_plugin(*format, "open", [&] { return format->open(folder, step); });
  const StoredByName stored(weights);
  std::set<std::string> found;
  const MappedSlices slices =
      state_slices(*saved, mapping_of(*session.architecture, saved->names()), stored, found);
  in_plugin(*format, "read", [&] { read_mapped(*saved, slices); });
  found.erase(kMaster);
  const bool goes_on = found == stored.states();

  const std::string where = saved->path().string();
  nlohmann::json arguments = nlohmann::json::object();
  if (!saved->arguments().empty()) {
    arguments = parse_json(saved->arguments(), where);
  }
  if (step && !arguments.contains("iteration")) {
    arguments["iteration"] = *step;
  }
  const Progress progress = progress_of(session, arguments, host);
  std::vector<Slice> written = slices_of(weights);
  ImportedRun imported{.from = given.description};
  if (!goes_on) {
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
