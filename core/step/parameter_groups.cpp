#include "core/step/parameter_groups.hpp"

#include "core/base/text.hpp"
#include "megahost/error.hpp"

#include <fnmatch.h>

#include <algorithm>
#include <set>
#include <sstream>

namespace mh {

namespace {

bool matches(const std::string& pattern, const std::string& name) {
  return fnmatch(pattern.c_str(), name.c_str(), 0) == 0;
}

/// The words between dots.
std::vector<std::string> parts(const std::string& name) {
  std::vector<std::string> all;
  std::istringstream stream(name);
  for (std::string part; std::getline(stream, part, '.');) {
    all.push_back(part);
  }
  return all;
}

/// "did you mean ...": the pattern with those parts put right that no name has.
std::string meant(const std::string& pattern, const std::set<std::string>& names) {
  std::set<std::string> known;
  for (const auto& name : names) {
    for (auto& part : parts(name)) {
      known.insert(std::move(part));
    }
  }
  std::string corrected;
  for (const auto& part : parts(pattern)) {
    const bool fine = std::any_of(known.begin(), known.end(), [&](const std::string& word) {
      return matches(part, word);
    });
    const auto near = fine ? part : nearest(part, {known.begin(), known.end()}).value_or(part);
    corrected += (corrected.empty() ? "" : ".") + near;
  }
  const bool right = std::any_of(names.begin(), names.end(), [&](const std::string& name) {
    return matches(corrected, name);
  });
  std::string such;
  for (const auto& name : names) {
    if (such.size() < 80) {
      such += (such.empty() ? "" : ", ") + name;
    }
  }
  return (right ? "did you mean \"" + corrected + "\"? " : "") + "names are such as " + such;
}

/// The names of all ranks' pieces.
std::set<std::string> all_names(const ParameterStore& parameters, const Ranks& ranks) {
  std::string mine;
  for (const auto& parameter : parameters.all()) {
    for (const auto& piece : parameter.pieces) {
      mine += piece.name + "\n";
    }
  }
  std::set<std::string> names;
  for (const auto& text : ranks.gather(mine)) {
    std::istringstream stream(text);
    for (std::string name; std::getline(stream, name);) {
      names.insert(name);
    }
  }
  return names;
}

void require_matches(
    const std::vector<Recipe::ParameterGroup>& groups, const std::set<std::string>& names
) {
  for (size_t i = 0; i < groups.size(); ++i) {
    for (const auto& pattern : groups[i].match) {
      if (std::none_of(names.begin(), names.end(), [&](const auto& name) {
            return matches(pattern, name);
          })) {
        throw Error(
            "optimizer.groups[" + std::to_string(i) + "].match: no parameter's name is like \"" +
                pattern + "\"",
            meant(pattern, names),
            exit_code::recipe
        );
      }
    }
  }
  if (std::all_of(names.begin(), names.end(), [&](const auto& name) {
        return factors_of(groups, name).frozen;
      })) {
    throw Error(
        "optimizer.groups freezes every parameter",
        "leave some to be trained; megahost eval computes a loss without training",
        exit_code::recipe
    );
  }
}

} // namespace

ParameterFactors
factors_of(const std::vector<Recipe::ParameterGroup>& groups, const std::string& name) {
  ParameterFactors factors;
  for (const auto& group : groups) {
    if (std::any_of(group.match.begin(), group.match.end(), [&](const auto& pattern) {
          return matches(pattern, name);
        })) {
      factors.lr = group.lr_multiplier.value_or(factors.lr);
      factors.decay = group.decay_multiplier.value_or(factors.decay);
      factors.frozen = group.frozen.value_or(factors.frozen);
    }
  }
  return factors;
}

void freeze(
    ParameterStore& parameters,
    const std::vector<Recipe::ParameterGroup>& groups,
    const Ranks& ranks
) {
  if (groups.empty()) {
    return;
  }
  require_matches(groups, all_names(parameters, ranks));
  mark_frozen(parameters, groups);
}

void mark_frozen(ParameterStore& parameters, const std::vector<Recipe::ParameterGroup>& groups) {
  if (groups.empty()) {
    return;
  }
  for (auto& parameter : parameters.all()) {
    bool all = true;
    for (auto& piece : parameter.pieces) {
      piece.frozen = factors_of(groups, piece.name).frozen;
      all = all && piece.frozen;
    }
    if (all) {
      parameter.value.requires_grad_(false);
    }
  }
}

} // namespace mh
