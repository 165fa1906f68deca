#include "core/host/plan/search.hpp"

#include "core/host/plan/changes.hpp"
#include "core/plan/short_stages.hpp"
#include "core/train/seconds.hpp"
#include "core/train/session.hpp"
#include "megahost/error.hpp"

#include <algorithm>
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

std::vector<int64_t> divisors(int64_t number, int64_t most) {
  std::vector<int64_t> all;
  for (int64_t degree = 1; degree <= std::min(number, most); ++degree) {
    if (number % degree == 0) {
      all.push_back(degree);
    }
  }
  return all;
}

Sets operator+(Sets a, const Sets& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

/// Who holds what.
struct Holding {
  Sets sets;
  bool pipeline;
};

/// What is tried: all combinations of `layouts`, `batches`, and `orders` of a pipeline.
struct Space {
  std::vector<Holding> layouts;
  std::vector<Sets> batches; ///< what passes take at a time, and keep
  std::vector<Sets> orders;  ///< of a pipeline's passes
};

int64_t model_size(const Recipe& recipe, const char* key) {
  const Value* value = recipe.model.options.find(key);
  return value != nullptr && value->is_integer() ? value->as_integer() : 0;
}

/// Tensor parallelism stays inside a node. A rank of context parallelism has at least 1,024 tokens,
/// below which its messages cost more than what it computes.
std::vector<Holding> layouts_of(const SearchTask& task) {
  constexpr int64_t kFewestTokens = 1024;
  const int64_t most_context = std::max<int64_t>(1, task.base.model.seq_length / kFewestTokens);
  const int64_t experts = model_size(task.base, "experts");
  const int64_t layers = model_size(task.base, "layers");
  std::vector<Holding> all;
  for (const int64_t tensor : divisors(task.world, task.machine.hardware.ranks_per_node)) {
    for (const int64_t context : divisors(task.world / tensor, most_context)) {
      const int64_t rest = task.world / tensor / context;
      for (const int64_t pipeline : divisors(rest, layers > 0 ? layers : rest)) {
        const int64_t data = rest / pipeline;
        const int64_t most_zero = data == 1 ? 0 : pipeline > 1 ? 1 : 3;
        for (const int64_t expert :
             divisors(task.world / pipeline, std::max<int64_t>(1, experts))) {
          for (int64_t zero = 0; zero <= most_zero; ++zero) {
            for (const bool sequence : {false, true}) {
              if (sequence && tensor == 1) {
                continue;
              }
              all.push_back(
                  {{number_set("parallel.tensor", tensor),
                    std::string("parallel.sequence=") + (sequence ? "true" : "false"),
                    number_set("parallel.context", context),
                    number_set("parallel.pipeline", pipeline),
                    number_set("parallel.expert", expert),
                    number_set("parallel.data", data),
                    number_set("parallel.zero", zero)},
                   pipeline > 1}
              );
            }
          }
        }
      }
    }
  }
  return all;
}

Space space_of(const SearchTask& task) {
  Space space{layouts_of(task), {}, {}};
  for (const int64_t micro : {1, 2, 4}) {
    for (const char* use : {"none", "selective", "full"}) {
      space.batches.push_back(
          {number_set("batch.micro", micro), std::string("recompute.use=") + use}
      );
    }
  }
  constexpr std::pair<const char*, int64_t> kOrders[] = {
      {"1f1b", 1}, {"1f1b", 2}, {"1f1b", 4}, {"zb-h1", 1}, {"zb-v", 2}};
  for (const auto& [schedule, chunks] : kOrders) {
    space.orders.push_back(
        {std::string("parallel.schedule=") + schedule,
         number_set("parallel.virtual_stages", chunks)}
    );
  }
  return space;
}

/// A batch's recipe that is not refused.
struct Tried {
  Sets sets;
  Recipe recipe;
};

/// What is kept of a plan until the frontier is known.
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
      , steps_(task.base, task.host, task.world) {
    for (const char* strategy :
         {"data", "tensor", "sequence", "pipeline", "context", "expert", "zero"}) {
      task.host.require(Kind::strategy, strategy); // opened before threads are there
    }
    for (const char* policy : {"none", "selective", "full"}) {
      task.host.require(Kind::recompute, policy);
    }
  }

  SearchResult run() {
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

private:
  [[nodiscard]] PlanTarget target(const Recipe& recipe) const {
    return {recipe, task_.host, task_.world, planned_device(recipe)};
  }

  /// One thread for each core; the first error of any is thrown.
  void in_parallel(size_t count, const std::function<void(size_t)>& work) {
    std::atomic<size_t> next = 0;
    std::exception_ptr failure;
    const auto worker = [&] {
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

  /// Those with a choice between memory and time: each is smaller than the faster one before it by
  /// a twentieth of what a rank has.
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
  std::mutex mutex_; // of what follows
  std::vector<Rated> rated_;
  SearchResult result_;
};

} // namespace

Sets one_rank_sets() {
  return {
      "parallel.tensor=1",
      "parallel.sequence=false",
      "parallel.context=1",
      "parallel.pipeline=1",
      "parallel.pipeline_layout=balanced",
      "parallel.virtual_stages=1",
      "parallel.schedule=1f1b",
      "parallel.expert=1",
      "parallel.expert_tensor=1",
      "parallel.data=1",
      "parallel.zero=0",
      "batch.micro=1",
      "recompute.use=none"};
}

SearchResult search_layouts(const SearchTask& task) {
  return Search(task).run();
}

} // namespace mh
