#pragma once
/// Sums of gradients over the ranks that need them, leaf by leaf.

#include "megahost/mesh.hpp"
#include "megahost/parameter.hpp"

namespace mh {

/// Sums the gradient of one piece over the members of a group.
void sum_gradient(Parameter& parameter, const Piece& piece, const Group& group);

/// Sums the gradients of parameters that pipeline stages share over these stages, in one order.
void sum_over_stages(ParameterStore& store, const Mesh& mesh);

} // namespace mh
