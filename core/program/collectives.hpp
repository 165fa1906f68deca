#pragma once
/// Collectives as operators of a recorded graph.

#include "megahost/mesh.hpp"

#include <cstdint>
#include <string>

namespace mh::program {

/// The operators, each with the groups of all ranks, "[[0, 1], [2, 3]]". Collectives go along the
/// first dimension.
namespace collective {
inline constexpr const char* kAllReduce = "mh_program::all_reduce";
inline constexpr const char* kAllGather = "mh_program::all_gather";
inline constexpr const char* kReduceScatter = "mh_program::reduce_scatter";
inline constexpr const char* kAllToAll = "mh_program::all_to_all";
} // namespace collective

/// The place of `rank` in a mesh whose collectives on the Meta device are recorded as these
/// operators. In host memory all ranks say the same.
[[nodiscard]] Mesh recorded_mesh(const MeshShape& shape, int64_t rank, const std::string& order);

} // namespace mh::program
