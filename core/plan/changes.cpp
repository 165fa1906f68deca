#include "core/plan/changes.hpp"

#include "core/base/text.hpp"
#include "core/plan/short_stages.hpp"
#include "core/recipe/tried.hpp"
#include "core/schema/sections.hpp"
#include "core/session/session.hpp"
#include "megahost/error.hpp"

#include <c10/util/Exception.h>

#include <algorithm>
#include <optional>
#include <utility>

namespace mh {

namespace {

using ChangeSets = std::vector<std::string>;

/// A recipe, and what plugins are asked about it.
class Changes {
public:
  Changes(const ChangeTask& task, const Recipe& recipe, int64_t world)
      : host_(task.host)
      , recipe_(recipe)
      , known_(section_schemas(host_.known(Kind::strategy)))
      , schema_(known_.at("parallel"))
      , facts_{
            .world = world,
            .ranks_per_node = task.machine.hardware.ranks_per_node,
            .seq_length = recipe.model.seq_length,
            .layers = layers_of(task.host, recipe),
            .model = recipe.model.options,
            .shape = mesh_shape(recipe, world)} {}

  /// Single changes worth a try; the recipe refuses some of them.
  [[nodiscard]] std::vector<ChangeSets> all() {
    for (const auto* strategy : in_order(host_.known(Kind::strategy))) {
      for (const Table& table : asked(*strategy, "parallel")) {
        add_layout(table);
      }
    }
    for (const auto* schedule : host_.known(Kind::pipeline_schedule)) {
      for (const Table& table : asked(*schedule, "parallel")) {
        ChangeSets sets{schedule_set(schema_, schedule->name)};
        add_sets(sets, "parallel", table);
        all_.push_back(std::move(sets));
      }
    }
    for (const auto* policy : host_.known(Kind::recompute)) {
      for (const Table& table : asked(*policy, "recompute")) {
        ChangeSets sets{"recompute.use=" + policy->name};
        add_sets(sets, "recompute", table);
        if (sets.size() > 1 || recipe_.recompute.use != policy->name) {
          all_.push_back(std::move(sets));
        }
      }
    }
    const int64_t micro = recipe_.batch.micro;
    if (micro % 2 == 0) {
      all_.push_back({number_set("batch.micro", micro / 2)});
    }
    all_.push_back({number_set("batch.micro", micro * 2)});
    if (recipe_.precision == "fp32") {
      all_.push_back({"precision=bf16"});
    }
    return std::move(all_);
  }

private:
  [[nodiscard]] std::vector<Table>
  asked(const Registry::Entry& entry, const std::string& section) const {
    auto tried =
        entry.changes ? entry.changes(facts_, *recipe_.tree.find(section)) : std::vector<Table>();
    require_tried(entry, "changes", tried, known_.at(section));
    return tried;
  }

  /// Copies of the model, where the recipe says how many, make room for other degrees.
  void add_layout(const Table& table) {
    ChangeSets sets;
    add_sets(sets, "parallel", table);
    int64_t before = 1, after = 1;
    for (const auto& entry : table) {
      const Field* field = schema_.find(entry.key);
      if (field != nullptr && field->degree && field->along != MeshAxis::ep &&
          field->along != MeshAxis::etp) {
        before *= recipe_.tree.find_path("parallel." + entry.key)->as_integer();
        after *= entry.value.as_integer();
      }
    }
    const auto* data = std::get_if<int64_t>(&recipe_.parallel.data);
    if (data != nullptr && before != after) {
      if (*data * before % after != 0) {
        return;
      }
      sets.push_back(number_set("parallel.data", *data * before / after));
    }
    all_.push_back(std::move(sets));
  }

  Host& host_;
  const Recipe& recipe_;
  SectionSchemas known_;
  const Schema& schema_; // the fields of parallel
  SearchFacts facts_;
  std::vector<ChangeSets> all_;
};

bool better(const Change& a, const Change& b) {
  if (a.plan.fits() != b.plan.fits()) {
    return a.plan.fits();
  }
  return a.plan.fits() ? a.plan.step.total < b.plan.step.total : a.plan.most() < b.plan.most();
}

/// Takes out the changes that contain a better one; the best comes first.
std::vector<Change> without_more(std::vector<Change> changes) {
  std::vector<Change> kept;
  for (auto& change : changes) {
    const auto holds = [&](const std::string& set) {
      return std::find(change.sets.begin(), change.sets.end(), set) != change.sets.end();
    };
    const bool more = std::any_of(kept.begin(), kept.end(), [&](const Change& better) {
      return std::all_of(better.sets.begin(), better.sets.end(), holds);
    });
    if (!more) {
      kept.push_back(std::move(change));
    }
  }
  return kept;
}

} // namespace

int64_t layers_of(Host& host, const Recipe& recipe) {
  const auto& architecture = host.require(Kind::architecture, recipe.model.use);
  return architecture.schema.layers_in(recipe.model.options);
}

std::string number_set(const char* key, int64_t value) {
  return std::string(key) + "=" + std::to_string(value);
}

void add_sets(std::vector<std::string>& ret_sets, const std::string& section, const Table& table) {
  for (const auto& entry : table) {
    const std::string text =
        entry.value.is_string() ? entry.value.as_string() : to_text(entry.value);
    ret_sets.push_back(section + "." + entry.key + "=" + text);
  }
}

std::string schedule_set(const Schema& parallel, const std::string& schedule) {
  const Field* field = parallel.find(Mechanism::schedule);
  MH_ASSERT(field != nullptr, "a schedule without a strategy that reads it");
  return "parallel." + field->name + "=" + schedule;
}

std::string set_options(const std::vector<std::string>& sets) {
  std::string text;
  for (const auto& set : sets) {
    text += (text.empty() ? "--set " : " --set ") + shell_word(set);
  }
  return text;
}

std::vector<Change> best_changes(const ChangeTask& task, const Recipe& recipe, const Plan& plan) {
  constexpr size_t kMost = 3;
  constexpr double kWorth = 0.01; // share of the step's time that a change has to save
  const auto helps = [&](const Plan& other) {
    const bool faster = other.step.total < plan.step.total * (1 - kWorth);
    return plan.fits() ? other.fits() && faster : other.fits() || other.most() < plan.most();
  };
  PlannedSteps steps(task.target(recipe));
  std::vector<Change> found;
  for (const auto& sets : Changes(task, recipe, plan.shape.world()).all()) {
    try {
      const Recipe changed = task.recipe(sets);
      const PlanTarget target = task.target(changed);
      if (target.world == plan.shape.world()) {
        found.push_back({sets, quick_plan(target, task.machine, steps)});
      }
    } catch (const Error&) {      // the recipe refuses it
    } catch (const c10::Error&) { // a plugin's rules let it through, and its operators fail
    }
  }
  std::erase_if(found, [&](const Change& change) { return !helps(change.plan); });
  std::sort(found.begin(), found.end(), better);
  found = without_more(std::move(found));
  found.resize(std::min(found.size(), kMost));
  for (auto& change : found) { // their effects are told as a plan of them tells them
    const Recipe changed = task.recipe(change.sets);
    change.plan = make_plan(record_step(task.target(changed)), changed, task.machine);
  }
  std::erase_if(found, [&](const Change& change) { return !helps(change.plan); });
  std::sort(found.begin(), found.end(), better);
  return found;
}

} // namespace mh
