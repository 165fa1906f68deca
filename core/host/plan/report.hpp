#pragma once
/// A plan for people and for programs.

#include "core/host/terminal.hpp"
#include "core/plan/plan.hpp"
#include "megahost/recipe.hpp"

#include <optional>
#include <string>
#include <vector>

namespace mh {

/// A change of a recipe and what it does to the plan.
struct Change {
  std::vector<std::string> sets; ///< as --set takes them
  Plan plan;
};

struct PlanReport {
  const Recipe& recipe;
  const Plan& plan;
  std::optional<double> run_tokens{}; ///< of the whole run
  std::vector<Change> changes{};      ///< the cheapest that help
};

[[nodiscard]] std::string plan_text(const PlanReport& report, const Terminal& terminal);
[[nodiscard]] std::string plan_json(const PlanReport& report);

/// How MFU and HFU are counted.
inline constexpr const char* kFlopsFormula =
    "6 FLOPs per weight of a product and token, and causal attention (half of the pairs)";

} // namespace mh
