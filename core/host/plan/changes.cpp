#include "core/host/plan/changes.hpp"

#include "core/plan/short_stages.hpp"
#include "core/recipe/text.hpp"
#include "megahost/error.hpp"

#include <algorithm>
#include <optional>
#include <utility>

namespace mh {

namespace {

using ChangeSets = std::vector<std::string>;

/// A degree doubled or halved; copies of the model, where the recipe says how many, make room.
class Degrees {
public:
  explicit Degrees(const Recipe::Parallel& parallel) {
    if (const auto* given = std::get_if<int64_t>(&parallel.data)) {
      data_ = *given;
    }
  }

  /// `doubled`, `halved`: sets that go along.
  void
  add(std::vector<ChangeSets>& all,
      const char* key,
      int64_t degree,
      ChangeSets doubled = {},
      ChangeSets halved = {}) const {
    if (!data_ || *data_ % 2 == 0) {
      doubled.push_back(number_set(key, degree * 2));
      all.push_back(with_data(std::move(doubled), [](int64_t d) { return d / 2; }));
    }
    if (degree % 2 == 0) {
      halved.push_back(number_set(key, degree / 2));
      all.push_back(with_data(std::move(halved), [](int64_t d) { return d * 2; }));
    }
  }

private:
  template <class Change>
  [[nodiscard]] ChangeSets with_data(ChangeSets sets, const Change& change) const {
    if (data_) {
      sets.push_back(number_set("parallel.data", change(*data_)));
    }
    return sets;
  }

  std::optional<int64_t> data_;
};

/// Single changes worth a try; the recipe refuses some of them.
std::vector<ChangeSets> changes_of(const Recipe& recipe) {
  const auto& p = recipe.parallel;
  std::vector<ChangeSets> all;
  if (p.tensor > 1 && !p.sequence) {
    all.push_back({"parallel.sequence=true"});
  }
  for (const int64_t zero : {0, 1, 2, 3}) {
    if (p.zero != zero) {
      all.push_back({number_set("parallel.zero", zero)});
    }
  }
  for (const char* use : {"none", "selective", "full"}) {
    if (recipe.recompute.use != use) {
      all.push_back({std::string("recompute.use=") + use});
    }
  }
  for (const char* parts :
       {R"(["core_attention", "norms"])", R"(["core_attention", "norms", "activations"])"}) {
    all.push_back({"recompute.use=selective", std::string("recompute.parts=") + parts});
  }
  if (recipe.batch.micro % 2 == 0) {
    all.push_back({number_set("batch.micro", recipe.batch.micro / 2)});
  }
  all.push_back({number_set("batch.micro", recipe.batch.micro * 2)});
  const Degrees degrees(p);
  degrees.add(
      all,
      "parallel.tensor",
      p.tensor,
      p.tensor == 1 ? ChangeSets{"parallel.sequence=true"} : ChangeSets(),
      p.tensor == 2 && p.sequence ? ChangeSets{"parallel.sequence=false"} : ChangeSets()
  );
  degrees.add(all, "parallel.pipeline", p.pipeline);
  degrees.add(all, "parallel.context", p.context);
  if (p.pipeline > 1 && p.virtual_stages == 1) {
    all.push_back({"parallel.schedule=1f1b", "parallel.virtual_stages=2"});
    all.push_back({"parallel.schedule=zb-h1"});
  }
  if (recipe.precision == "fp32") {
    all.push_back({"precision=bf16"});
  }
  return all;
}

bool better(const Change& a, const Change& b) {
  if (a.plan.fits() != b.plan.fits()) {
    return a.plan.fits();
  }
  return a.plan.fits() ? a.plan.step.total < b.plan.step.total : a.plan.most() < b.plan.most();
}

/// Of changes, the best first, those that are not a better one and something more.
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

std::string number_set(const char* key, int64_t value) {
  return std::string(key) + "=" + std::to_string(value);
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
  constexpr double kWorth = 0.01; // of the time
  const auto helps = [&](const Plan& other) {
    const bool faster = other.step.total < plan.step.total * (1 - kWorth);
    return plan.fits() ? other.fits() && faster : other.fits() || other.most() < plan.most();
  };
  PlannedSteps steps(recipe, task.host, plan.shape.world());
  std::vector<Change> found;
  for (const auto& sets : changes_of(recipe)) {
    try {
      const Recipe changed = task.recipe(sets);
      const PlanTarget target = task.target(changed);
      if (target.world == plan.shape.world()) {
        found.push_back({sets, quick_plan(target, task.machine, steps)});
      }
    } catch (const Error&) { // the recipe refuses it
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
