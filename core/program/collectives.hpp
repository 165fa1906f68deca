#pragma once
/// Collectives as operators of a recorded graph.

#include "megahost/mesh.hpp"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

namespace mh::program {

/// The operators, each with the groups of all ranks, "[[0, 1], [2, 3]]". Collectives go along the
/// first dimension.
namespace collective {
inline constexpr const char* kAllReduce = "mh_program::all_reduce";
inline constexpr const char* kAllGather = "mh_program::all_gather";
inline constexpr const char* kReduceScatter = "mh_program::reduce_scatter";
inline constexpr const char* kAllToAll = "mh_program::all_to_all";
} // namespace collective

/// The tensors that pipeline stages hand to one another: each stage is a program of its own, which
/// has no operators for that.
class StageTransfers {
public:
  virtual ~StageTransfers() = default;

  virtual void send(const at::Tensor& tensor, int64_t to_stage) = 0;
  virtual void receive(const at::Tensor& into, int64_t from_stage) = 0;

  /// The sum of all stages' tensors, with the same bits on each.
  [[nodiscard]] virtual at::Tensor sum(const at::Tensor& own) = 0;
};

/// The ranks of each pipeline stage, ascending: the replicas of its program.
[[nodiscard]] std::vector<std::vector<int64_t>>
ranks_of_stages(const MeshShape& shape, const std::string& order);

/// The pipeline stage of a rank, among those of `ranks_of_stages`.
[[nodiscard]] size_t stage_of(const std::vector<std::vector<int64_t>>& stages, int64_t rank);

/// The place of `rank` in a mesh whose collectives on the Meta device are recorded as these
/// operators, whose groups are of the replicas of a stage. In host memory all ranks say the same.
/// `stages` outlives the mesh.
[[nodiscard]] Mesh recorded_mesh(
    const MeshShape& shape, int64_t rank, const std::string& order, StageTransfers& stages
);

} // namespace mh::program
