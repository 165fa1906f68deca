#pragma once
/// Parameters that a recipe trains in another way than the rest: `optimizer.groups`.

#include "core/mesh/agree.hpp"
#include "megahost/export.hpp"
#include "megahost/parameter.hpp"
#include "megahost/recipe.hpp"

#include <string>
#include <vector>

namespace mh {

/// The factors of one parameter by the groups.
struct ParameterFactors {
  double lr = 1, decay = 1;
  bool frozen = false;
};

/// Groups are asked in turn; what a later one says wins.
[[nodiscard]] ParameterFactors
factors_of(const std::vector<Recipe::ParameterGroup>& groups, const std::string& name);

/// Marks the pieces that are frozen; where all of a leaf are, it needs no gradient. Call it before
/// gradients are allocated.
void mark_frozen(ParameterStore& parameters, const std::vector<Recipe::ParameterGroup>& groups);

/// The same, and every pattern has to match.
///
/// Throws:  mh::Error (exit code 2) for a pattern that is no parameter's name, with what may be
///          meant, and if nothing is left to train
/// Ranks:   all of `ranks`; a name may be on any of them
MH_API void freeze(
    ParameterStore& parameters,
    const std::vector<Recipe::ParameterGroup>& groups,
    const Ranks& ranks
);

} // namespace mh
