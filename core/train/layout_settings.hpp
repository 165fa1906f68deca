#pragma once
/// The settings of a layout besides its degrees, for texts about runs and plans.

#include "megahost/host.hpp"
#include "megahost/mesh_shape.hpp"
#include "megahost/recipe.hpp"

#include <string>

namespace mh {

/// ", sequence, zero 3": settings of strategies other than degrees, for mesh axes of more than one
/// rank.
[[nodiscard]] std::string settings_text(const Recipe& recipe, const MeshShape& shape, Host& host);

} // namespace mh
