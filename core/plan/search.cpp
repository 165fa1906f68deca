#include "core/plan/search.hpp"

#include "core/base/seconds.hpp"
#include "core/plan/changes.hpp"
#include "core/plan/short_stages.hpp"
#include "core/recipe/commands.hpp"
#include "core/recipe/tried.hpp"
#include "core/schema/sections.hpp"
#include "core/session/session.hpp"
#include "megahost/error.hpp"

#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <exception>
#include <map>
#include <mutex>
#include <optional>
#include <thread>
#include <tuple>
#include <utility>

namespace mh {

namespace {

using Sets = std::vector<std::string>;

Sets operator+(Sets a, const Sets& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

/// A layout: the keys that decide what each rank holds.
struct Holding {
  Sets sets;
  bool pipeline;
};

/// The search space: all combinations of `layouts`, `batches`, and `orders` of a pipeline.
struct Space {
  std::vector<Holding> layouts;
  std::vector<Sets> batches; ///< settings of the microbatch, and of recompute
  std::vector<Sets> orders;  ///< orders of a pipeline's passes
};

/// The axis of a strategy's degree; nothing if it has none.
std::optional<MeshAxis> degree_axis(const Registry::Entry& strategy) {
  for (const Field& field : strategy.schema.fields) {
    if (field.degree) {
      return field.along;
    }
  }
  return std::nullopt;
}

/// A layout in the making.
struct Draft {
  SearchFacts facts;
  int64_t left; ///< ranks that no degree has taken yet
  std::map<std::pair<size_t, bool>, Sets>
      sets{}; ///< by axis, from the inner to the outer; degrees first
};

/// Warnings of several threads, each sentence once.
class Collected : public c10::WarningHandler {
public:
  void process(const c10::Warning& warning) override {
    const std::lock_guard lock(mutex_);
    if (std::find(sentences_.begin(), sentences_.end(), warning.msg()) == sentences_.end()) {
      sentences_.push_back(warning.msg());
    }
  }

  [[nodiscard]] std::vector<std::string> take() { return std::exchange(sentences_, {}); }

private:
  std::mutex mutex_;
  std::vector<std::string> sentences_;
};

class Layouts {
public:
  explicit Layouts(const SearchTask& task)
      : strategies_(in_order(task.host.known(Kind::strategy)))
      , drafts_{
            {{.world = task.world,
              .ranks_per_node = task.machine.hardware.ranks_per_node,
              .seq_length = task.base.model.seq_length,
              .layers = layers_of(task.host, task.base),
              .model = task.base.model.options},
             task.world}} {
    std::erase_if(strategies_, [](const auto* strategy) { return !strategy->searched; });
  }

  std::vector<Holding> all() {
    for (const MeshAxis axis : {MeshAxis::tp, MeshAxis::cp, MeshAxis::pp}) {
      for (const auto* strategy : strategies_) {
        if (degree_axis(*strategy) == axis) {
          try_values(*strategy);
        }
      }
    }
    for (Draft& draft : drafts_) { // copies of the model take what is left
      draft.facts.shape.dp = draft.left;
      draft.sets[place(MeshAxis::dp, true)] = {number_set("parallel.data", draft.left)};
    }
    for (const auto* strategy : strategies_) {
      const auto axis = degree_axis(*strategy);
      if (axis != MeshAxis::tp && axis != MeshAxis::cp && axis != MeshAxis::pp) {
        try_values(*strategy);
      }
    }
    std::vector<Holding> layouts;
    for (const Draft& draft : drafts_) {
      Holding& layout = layouts.emplace_back(Holding{{}, draft.facts.shape.pp > 1});
      for (const auto& [place, sets] : draft.sets) {
        layout.sets = layout.sets + sets;
      }
    }
    return layouts;
  }

private:
  /// The place of a key among those of a layout; one that is about no axis is last.
  static std::pair<size_t, bool> place(std::optional<MeshAxis> axis, bool degree) {
    constexpr std::array kOrder{
        MeshAxis::tp,
        MeshAxis::cp,
        MeshAxis::pp,
        MeshAxis::ep,
        MeshAxis::etp,
        MeshAxis::edp,
        MeshAxis::dp};
    const auto* found = axis ? std::find(kOrder.begin(), kOrder.end(), *axis) : kOrder.end();
    return {found - kOrder.begin(), !degree};
  }

  static int64_t& degree_of(MeshShape& shape, MeshAxis axis) {
    return axis == MeshAxis::tp   ? shape.tp
           : axis == MeshAxis::cp ? shape.cp
           : axis == MeshAxis::pp ? shape.pp
           : axis == MeshAxis::ep ? shape.ep
                                  : shape.etp;
  }

  void try_values(const Registry::Entry& strategy) {
    std::vector<Draft> before = std::exchange(drafts_, {});
    for (const Draft& draft : before) {
      auto tried = strategy.searched(draft.facts);
      require_tried(strategy, "searched", tried, Schema());
      if (tried.empty()) {
        tried.emplace_back(); // nothing to try leaves the layout as it is
      }
      for (const Table& values : tried) {
        Draft more = draft;
        bool fits = true;
        for (const auto& entry : values) {
          const Field* field = strategy.schema.find(entry.key);
          if (field->degree) {
            const int64_t degree = entry.value.as_integer();
            degree_of(more.facts.shape, *field->along) = degree;
            if (field->along != MeshAxis::ep && field->along != MeshAxis::etp) {
              fits = fits && more.left % degree == 0;
              more.left /= degree;
            }
          }
          add_sets(
              more.sets[place(field->along, field->degree)],
              "parallel",
              Table{{entry.key, entry.value}}
          );
        }
        if (fits) {
          drafts_.push_back(std::move(more));
        }
      }
    }
  }

  std::vector<const Registry::Entry*> strategies_;
  std::vector<Draft> drafts_;
};

/// Settings that a plugin lets a search try, its own name first.
std::vector<Sets> searched(
    const Registry::Entry& entry,
    const std::string& name_set,
    const SearchFacts& facts,
    const Schema& section
) {
  std::vector<Sets> all;
  const auto tried = entry.searched ? entry.searched(facts) : std::vector<Table>();
  require_tried(entry, "searched", tried, section);
  for (const Table& table : tried) {
    add_sets(all.emplace_back(Sets{name_set}), std::string(info(entry.kind).section), table);
  }
  return all;
}

Space space_of(const SearchTask& task) {
  Space space{Layouts(task).all(), {}, {}};
  const SearchFacts facts{
      .world = task.world,
      .layers = layers_of(task.host, task.base),
      .model = task.base.model.options};
  const SectionSchemas known = section_schemas(task.host.known(Kind::strategy));
  for (const int64_t micro : {1, 2, 4}) {
    for (const auto* policy : task.host.known(Kind::recompute)) {
      for (const Sets& sets :
           searched(*policy, "recompute.use=" + policy->name, facts, known.at("recompute"))) {
        space.batches.push_back(Sets{number_set("batch.micro", micro)} + sets);
      }
    }
  }
  const Schema& parallel = known.at("parallel");
  for (const auto* schedule : task.host.known(Kind::pipeline_schedule)) {
    for (Sets& sets :
         searched(*schedule, schedule_set(parallel, schedule->name), facts, parallel)) {
      space.orders.push_back(std::move(sets));
    }
  }
  return space;
}

/// A batch's recipe that is not refused.
struct Tried {
  Sets sets;
  Recipe recipe;
};

/// The part of a plan that is kept until the frontier is known.
struct Rated {
  Sets sets;
  int64_t bytes;
  double seconds;
  bool fits;
};

class Search {
public:
  explicit Search(const SearchTask& task)
      : task_(task)
      , space_(space_of(task))
      , steps_({task.base, task.host, task.world, planned_device(task.base, task.host)}) {}

  SearchResult run() {
    try {
      SearchResult result = tried();
      result.warnings = warnings_.take();
      return result;
    } catch (...) {
      for (const std::string& sentence : warnings_.take()) {
        TORCH_WARN(sentence);
      }
      throw;
    }
  }

private:
  SearchResult tried() {
    const c10::WarningUtils::WarningHandlerGuard guard(&warnings_);
    const auto begin = Clock::now();
    in_parallel(space_.layouts.size(), [&](size_t i) { try_layout(space_.layouts[i]); });
    result_.planned = static_cast<int64_t>(rated_.size());
    result_.fit = std::count_if(rated_.begin(), rated_.end(), [](const auto& r) { return r.fits; });
    for (const auto& rated : frontier()) {
      result_.frontier.push_back({rated.sets, task_.recipe(rated.sets), rated.bytes, rated.seconds}
      );
    }
    in_parallel(result_.frontier.size(), [&](size_t i) {
      auto& found = result_.frontier[i];
      found.plan = make_plan(record_step(target(found.recipe)), found.recipe, task_.machine);
    });
    result_.seconds = seconds_since(begin);
    return std::move(result_);
  }

  [[nodiscard]] PlanTarget target(const Recipe& recipe) const {
    return {recipe, task_.host, task_.world, planned_device(recipe, task_.host)};
  }

  /// One thread for each core; the first error of any is thrown.
  void in_parallel(size_t count, const std::function<void(size_t)>& work) {
    std::atomic<size_t> next = 0;
    std::exception_ptr failure;
    const auto worker = [&] {
      const c10::WarningUtils::WarningHandlerGuard guard(&warnings_); // each thread has its own
      try {
        for (size_t i = next++; i < count; i = next++) {
          work(i);
        }
      } catch (...) {
        const std::lock_guard lock(mutex_);
        failure = std::current_exception();
        next = count;
      }
    };
    std::vector<std::thread> threads;
    for (unsigned i = 1; i < std::thread::hardware_concurrency(); ++i) {
      threads.emplace_back(worker);
    }
    worker();
    for (auto& thread : threads) {
      thread.join();
    }
    if (failure) {
      std::rethrow_exception(failure);
    }
  }

  void try_layout(const Holding& layout) {
    std::optional<ShortStages> kept; // weights, gradients and state do not depend on the batch
    for (const auto& batch : space_.batches) {
      try_batch(layout, batch, kept);
    }
  }

  void try_batch(const Holding& layout, const Sets& batch, std::optional<ShortStages>& kept) {
    std::vector<Tried> left;
    auto passes = ShortPasses::whole;
    for (const auto& order : space_.orders) {
      if (!layout.pipeline && &order != &space_.orders.front()) {
        break; // there is nothing to order
      }
      count(result_.tried);
      Tried candidate{layout.sets + batch + order, {}};
      unless_refused([&] {
        candidate.recipe = task_.recipe(candidate.sets);
        const auto& recipe = candidate.recipe;
        if (!steps_.alike(recipe)) {
          rate(candidate.sets, make_plan(record_step(target(recipe)), recipe, task_.machine));
          return;
        }
        if (!kept) {
          kept.emplace(target(recipe), task_.machine, ShortPasses::none);
        }
        const int64_t memory = task_.machine.hardware.memory();
        if (memory > 0 && kept->kept(recipe, steps_) > memory) {
          count(result_.too_large);
          return;
        }
        passes = std::max(passes, steps_.passes(recipe));
        left.push_back(std::move(candidate));
      });
    }
    if (left.empty()) {
      return;
    }
    std::optional<ShortStages> stages;
    for (const auto& candidate : left) {
      unless_refused([&] {
        if (!stages) {
          stages.emplace(target(left.front().recipe), task_.machine, passes);
        }
        rate(candidate.sets, stages->plan(candidate.recipe, steps_));
      });
    }
  }

  /// Counts it if the recipe, a strategy or a schedule refuses.
  void unless_refused(const std::function<void()>& work) {
    try {
      work();
    } catch (const Error& error) {
      const std::lock_guard lock(mutex_);
      ++result_.refused;
      if (result_.refusal.empty()) {
        result_.refusal = error.what();
      }
    }
  }

  void count(int64_t& number) {
    const std::lock_guard lock(mutex_);
    ++number;
  }

  void rate(const Sets& sets, const Plan& plan) {
    const std::lock_guard lock(mutex_);
    rated_.push_back({sets, plan.most(), plan.step.total, plan.fits()});
  }

  /// The plans with a choice between memory and time: each is smaller than the faster one before it
  /// by a twentieth of what a rank has.
  [[nodiscard]] std::vector<Rated> frontier() {
    constexpr int64_t kSteps = 20;
    std::sort(rated_.begin(), rated_.end(), [](const Rated& a, const Rated& b) {
      return std::tie(a.seconds, a.bytes, a.sets) < std::tie(b.seconds, b.bytes, b.sets);
    });
    const int64_t step = task_.machine.hardware.memory() / kSteps;
    std::vector<Rated> all;
    for (const auto& rated : rated_) {
      if (rated.fits && (all.empty() || rated.bytes <= all.back().bytes - step)) {
        all.push_back(rated);
      }
    }
    if (all.empty() && !rated_.empty()) {
      all.push_back(*std::min_element(
          rated_.begin(),
          rated_.end(),
          [](const auto& a, const auto& b) { return a.bytes < b.bytes; }
      ));
    }
    return all;
  }

  const SearchTask& task_;
  Space space_;
  PlannedSteps steps_;
  std::mutex mutex_; // guards what follows
  std::vector<Rated> rated_;
  SearchResult result_;
  Collected warnings_;
};

} // namespace

Sets one_rank_sets(Host& host) {
  Sets sets;
  add_sets(sets, "parallel", one_rank(shared_schema("parallel", host.known(Kind::strategy))));
  sets.emplace_back("batch.micro=1");
  sets.push_back("recompute.use=" + std::string(plugin_section("recompute")->default_use));
  return sets;
}

SearchResult search_layouts(const SearchTask& task) {
  return Search(task).run();
}

} // namespace mh
