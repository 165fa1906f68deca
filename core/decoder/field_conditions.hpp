#pragma once
/// Tables of the contradictions between the fields of a config.

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace mh {

template <class Config>
struct FieldCondition {
  std::string_view field; ///< at which it is reported
  /// The contradiction as a sentence; empty if there is none.
  std::string (*check)(const Config& config);
};

template <class Config, size_t size>
std::vector<std::string> fields_of(const FieldCondition<Config> (&conditions)[size]) {
  std::vector<std::string> fields;
  for (const auto& condition : conditions) {
    fields.emplace_back(condition.field);
  }
  return fields;
}

/// The contradiction at a field; empty if there is none.
template <class Config, size_t size>
std::string contradiction_at(
    const FieldCondition<Config> (&conditions)[size], const std::string& field, const Config& config
) {
  for (const auto& condition : conditions) {
    if (condition.field == field) {
      return condition.check(config);
    }
  }
  return "";
}

} // namespace mh
