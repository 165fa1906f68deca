#pragma once
/// The choices that `megahost plan` may try of a plugin: every layout in a search, single changes
/// of a recipe.

#include "megahost/mesh_shape.hpp"
#include "megahost/value.hpp"

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace mh {

/// The facts that are known when a plugin is asked.
struct SearchFacts {
  int64_t world = 1; ///< ranks of the run
  int64_t ranks_per_node = 1;
  int64_t seq_length = 1;
  int64_t layers = 0;    ///< the model's (Schema::layers_in); 0 if it does not say
  Value model = Table{}; ///< the model's fields
  MeshShape shape{};     ///< degrees chosen so far; see `searched` in strategy.hpp

  /// A field of the model, "experts"; 0 if it has none.
  [[nodiscard]] int64_t model_size(std::string_view key) const {
    const Value* value = model.find(key);
    return value != nullptr && value->is_integer() ? value->as_integer() : 0;
  }
};

/// {{key, 1}, ..., {key, most}}.
[[nodiscard]] inline std::vector<Table> degrees_up_to(const std::string& key, int64_t most) {
  std::vector<Table> all;
  for (int64_t degree = 1; degree <= most; ++degree) {
    all.push_back({{key, degree}});
  }
  return all;
}

/// The degree doubled, and halved where it is even.
[[nodiscard]] inline std::vector<Table> neighbours(const std::string& key, int64_t degree) {
  std::vector<Table> all{{{key, degree * 2}}};
  if (degree % 2 == 0) {
    all.push_back({{key, degree / 2}});
  }
  return all;
}

} // namespace mh
