#pragma once
/// A plan for people and for programs: as text, as JSON, as a page.

#include "core/draw/terminal.hpp"
#include "core/plan/changes.hpp"
#include "core/plan/measured.hpp"
#include "core/plan/memory.hpp"
#include "core/plan/plan.hpp"
#include "megahost/recipe.hpp"

#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace mh {

/// The plan of a step whose experts get uneven numbers of rows.
struct UnevenPlan {
  double imbalance; ///< rows of the busiest rank's experts, times the mean
  Plan plan;
};

struct PlanReport {
  const Recipe& recipe;
  const Plan& plan;
  std::optional<double> run_tokens{}; ///< tokens of the whole run
  std::vector<Change> changes{};      ///< the cheapest that help
  std::vector<Plan> scaling{};        ///< plans on fewer and on more data ranks, for the page
  std::optional<Measured> measured{}; ///< medians of the run whose folder was planned
  std::optional<UnevenPlan> uneven{}; ///< to be shown next to it
  std::string settings{};             ///< options of strategies, besides degrees: ", zero 3"
};

[[nodiscard]] std::string plan_text(const PlanReport& report, const Terminal& terminal);
[[nodiscard]] std::string plan_json(const PlanReport& report);
/// One page with pictures.
[[nodiscard]] std::string plan_page(const PlanReport& report);

/// Bytes of the copy on the host that a measured run's peak holds since it first saved.
[[nodiscard]] int64_t copied_before(const Plan& plan, const Recipe& recipe, const Measured& run);

/// The words that text and page share: seconds or milliseconds, the title of a plan in two lines.
[[nodiscard]] std::string seconds_text(double seconds);
[[nodiscard]] std::string plan_title(const PlanReport& report);
/// A change as the command line takes it, and what it does.
[[nodiscard]] std::string change_text(const Plan& plan, const Change& change);
/// The parts of a step's time, in the order in which they are printed.
[[nodiscard]] std::vector<std::pair<std::string, double>> time_parts(const StepTime& step);

/// How MFU and HFU are counted.
inline constexpr const char* kFlopsFormula =
    "6 FLOPs per weight of a GEMM and token, the pairs that attention's mask leaves, and a "
    "recurrence's GEMMs with its state";

} // namespace mh
