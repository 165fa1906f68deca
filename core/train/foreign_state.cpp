#include "core/train/foreign_state.hpp"

#include "core/base/printable.hpp"
#include "core/formats/json.hpp"
#include "core/recipe/changes.hpp"
#include "core/train/given_weights.hpp"
#include "core/train/start_block.hpp"
#include "megahost/error.hpp"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <utility>

namespace mh {

namespace {

std::string stored_name(const std::string& state, const std::string& name) {
  return state == StoredParts::kMaster ? name : "optimizer." + state + "." + name;
}

const void* storage_of(const at::Tensor& tensor) {
  return tensor.storage().unsafeGetStorageImpl();
}

} // namespace

StoredParts::StoredParts(const Weights& weights, ParameterStore& store)
    : store_(store) {
  for (const Weights::Stored& stored : weights.stored()) {
    at::Tensor value = stored.data;
    if (value.is_meta()) {
      value = at::empty(value.sizes(), value.options());
      of_storage_[storage_of(value)] = stored.name;
    }
    const bool is_new = all_.emplace(stored.name, OwnPart{stored.piece, value}).second;
    MH_ASSERT(is_new, "a rank stores one part of " + stored.name);
    const std::string& name = stored.piece->name;
    if (stored.name != name) { // optimizer.exp_avg.NAME
      constexpr std::string_view kBefore = "optimizer.";
      states_.insert(
          stored.name.substr(kBefore.size(), stored.name.size() - kBefore.size() - name.size() - 1)
      );
    }
  }
}

OwnPart StoredParts::empty_part(const std::string& name) const {
  const Parameter* parameter = store_.find(name);
  MH_ASSERT(parameter != nullptr, "this rank has no parameter `" + name + "`");
  const auto piece = std::ranges::find(parameter->pieces, name, &Piece::name);
  Piece& empty = empty_.emplace_back(*piece);
  empty.shape.assign(empty.global_shape.size(), 0);
  return {&empty, at::empty(empty.shape, parameter->value.options())};
}

OwnParts StoredParts::parts(const std::string& state) const {
  return [this, state](const std::string& name) {
    const auto found = all_.find(stored_name(state, name));
    return found != all_.end() ? found->second : empty_part(name);
  };
}

bool StoredParts::has(const std::string& state, const std::string& name) const {
  return all_.contains(stored_name(state, name));
}

const at::Tensor& StoredParts::value(const std::string& stored) const {
  return all_.at(stored).value;
}

std::map<std::string, MappedSlices> StoredParts::by_tensor(const MappedSlices& slices) const {
  std::map<std::string, MappedSlices> found;
  const auto sort = [&](const auto& all, const auto& view_of, auto MappedSlices::*list) {
    for (const auto& one : all) {
      if (const auto at = of_storage_.find(storage_of(view_of(one))); at != of_storage_.end()) {
        (found[at->second].*list).push_back(one);
      }
    }
  };
  const auto own = [](const auto& one) -> const at::Tensor& { return one.own; };
  sort(
      slices.slices,
      [](const Slice& one) -> const at::Tensor& { return one.local; },
      &MappedSlices::slices
  );
  sort(slices.joined, own, &MappedSlices::joined);
  sort(slices.packed, own, &MappedSlices::packed);
  return found;
}

std::set<std::string> add_state_slices(
    const CheckpointReader& saved,
    const std::vector<HfTensor>& maps,
    const StoredParts& stored,
    MappedSlices& ret_slices
) {
  std::set<std::string> states = stored.states();
  states.insert(StoredParts::kMaster);
  std::set<std::string> found;
  for (const std::string& state : states) {
    std::string lacking;
    for (const HfTensor& map : maps) {
      if (!stored.has(state, map.ours.front())) {
        continue; // a buffer, which has none, or another rank's
      }
      const std::string name = "optimizer." + state + "." + map.theirs;
      const CheckpointTensor* theirs = saved.find(name);
      if (theirs != nullptr) {
        found.insert(state);
        if (state != StoredParts::kMaster) { // which are the weights, and read as such
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
  found.erase(StoredParts::kMaster);
  return found;
}

namespace {

int64_t number_in(const nlohmann::json& arguments, const char* key, int64_t otherwise) {
  const auto found = arguments.find(key);
  return found != arguments.end() && is_json_size(*found) ? found->get<int64_t>() : otherwise;
}

} // namespace

Progress foreign_progress(const Session& session, const GivenWeights& given, Host& host) {
  const Recipe& recipe = session.recipe;
  const nlohmann::json arguments = given.arguments.empty()
                                       ? nlohmann::json::object()
                                       : parse_json(given.arguments, given.description);
  Progress progress;
  progress.step = number_in(arguments, "iteration", given.step.value_or(0));
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

} // namespace mh
