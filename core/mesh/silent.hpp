#pragma once
/// Ranks that are not there: collectives that end at once and change nothing, for steps on the Meta
/// device, where only shapes count.

#include "megahost/mesh.hpp"

namespace mh {

/// The place of `mesh` in a mesh of the same shape without the others.
[[nodiscard]] Mesh alone(const Mesh& mesh);

} // namespace mh
