#include "core/checkpoint/tensor_match.hpp"

#include "core/base/printable.hpp"
#include "core/base/text.hpp"
#include "megahost/error.hpp"

#include <algorithm>

namespace mh {

std::optional<std::vector<std::string>> stars_of(std::string_view pattern, std::string_view name) {
  const size_t star = pattern.find('*');
  const std::string_view before = pattern.substr(0, star);
  if (!name.starts_with(before)) {
    return std::nullopt;
  }
  if (star == std::string_view::npos) {
    return name == pattern ? std::optional(std::vector<std::string>()) : std::nullopt;
  }
  const std::string_view rest = name.substr(before.size());
  for (size_t taken = 0; taken <= rest.size(); ++taken) {
    if (auto stars = stars_of(pattern.substr(star + 1), rest.substr(taken))) {
      stars->insert(stars->begin(), std::string(rest.substr(0, taken)));
      return stars;
    }
  }
  return std::nullopt;
}

namespace {

/// A pattern with what its stars stand for.
std::string filled(const std::string& pattern, const std::vector<std::string>& stars) {
  std::string name;
  size_t star = 0;
  for (const char c : pattern) {
    name += c == '*' ? stars[star++] : std::string(1, c);
  }
  return name;
}

} // namespace

TensorMatch::TensorMatch(const std::map<std::string, Value>& patterns) {
  for (const auto& [pattern, value] : patterns) {
    const bool renames = value.is_string();
    patterns_.push_back(
        {pattern,
         renames ? std::optional(value.as_string()) : std::nullopt,
         renames || value.as_boolean()}
    );
  }
  std::stable_sort(patterns_.begin(), patterns_.end(), [](const Pattern& a, const Pattern& b) {
    return a.text.size() > b.text.size();
  });
}

std::optional<std::string>
TensorMatch::theirs(const std::string& name, const std::vector<std::string>& others) const {
  for (const Pattern& pattern : patterns_) {
    if (const auto stars = stars_of(pattern.text, name); stars && pattern.theirs) {
      return filled(*pattern.theirs, *stars);
    } else if (!pattern.theirs && (stars || std::ranges::any_of(others, [&](const auto& other) {
                                     return stars_of(pattern.text, other).has_value();
                                   }))) {
      return pattern.load ? std::optional(name) : std::nullopt;
    }
  }
  return name;
}

void TensorMatch::require_all_fit(const std::vector<std::string>& names) const {
  for (const Pattern& pattern : patterns_) {
    const bool fits = std::ranges::any_of(names, [&](const std::string& name) {
      return stars_of(pattern.text, name).has_value();
    });
    if (!fits) {
      const auto meant = nearest(pattern.text, names);
      throw Error(
          "load.match: " + printable(pattern.text) + " fits no tensor that the model asks for",
          meant ? "did you mean " + *meant + "?"
                : "the model has " + some_names(names) + "; * stands for any characters",
          exit_code::recipe
      );
    }
  }
}

std::string some_names(const std::vector<std::string>& names) {
  constexpr size_t kMost = 8;
  std::vector<std::string> some;
  for (size_t i = 0; i < std::min(kMost, names.size()); ++i) {
    some.push_back(printable(names[i]));
  }
  return join(some) +
         (names.size() > kMost ? " and " + std::to_string(names.size() - kMost) + " more" : "");
}

} // namespace mh
