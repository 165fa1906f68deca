#pragma once
/// The ranks that form each group: arithmetic of degrees and order, without transports.

#include "megahost/mesh.hpp"

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace mh {

/// The ranks that differ along `axis` only: every group of it, by first member.
///
/// Throws:  mh::Error for an order that is none
[[nodiscard]] MH_API std::vector<std::vector<int64_t>>
mesh_groups(const MeshShape& shape, MeshAxis axis, std::string_view order);

/// Degree of an axis.
[[nodiscard]] int64_t degree(const MeshShape& shape, MeshAxis axis);

/// Process groups in which a rank communicates: all ranks, and those along each axis of more than
/// one; axes of experts where there are ranks for experts.
[[nodiscard]] MH_API int64_t process_groups(const MeshShape& shape);

/// Throws:  mh::Error if the degrees do not divide one another
void check_degrees(const MeshShape& shape);

} // namespace mh
