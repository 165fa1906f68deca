#include "megahost/mesh.hpp"

#include "core/mesh/collective_log.hpp"
#include "core/mesh/layout.hpp"
#include "megahost/error.hpp"

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <algorithm>

namespace mh {

namespace {

int64_t index_in(const std::vector<int64_t>& members, int64_t rank) {
  const auto found = std::find(members.begin(), members.end(), rank);
  return found == members.end() ? -1 : found - members.begin();
}

/// "tp:0,1,2,3", "dp:0,8,...,4088": ranks along an axis are equally far apart, so that the first
/// two and the last say which they are.
std::string group_name(std::string_view axis, const std::vector<int64_t>& members) {
  constexpr size_t kShown = 8;
  const bool all = members.size() <= kShown;
  std::string name(axis);
  for (size_t i = 0; i < (all ? members.size() : 2); ++i) {
    name += (i == 0 ? ":" : ",") + std::to_string(members[i]);
  }
  return all ? name : name + ",...," + std::to_string(members.back());
}

/// Makes the transport of one group on every rank of the world; returns the group if `rank` is in
/// it.
Group make_group(
    std::string_view axis,
    const std::vector<int64_t>& members,
    int64_t rank,
    const MakeBackend& make_backend,
    const std::shared_ptr<CollectiveLog>& log
) {
  const int64_t index = index_in(members, rank);
  const std::string name = group_name(axis, members);
  c10::intrusive_ptr<c10d::Backend> backend;
  if (members.size() > 1) {
    backend = make_backend(name, members, index);
  }
  return Group(name, members, index, std::move(backend), index < 0 ? nullptr : log);
}

} // namespace

Mesh::Mesh()
    : Mesh(MeshShape{}, 0, nullptr) {}

Mesh::Mesh(
    const MeshShape& shape, int64_t rank, const MakeBackend& make_backend, std::string_view order
)
    : shape_(shape)
    , rank_(rank)
    , log_(std::make_shared<CollectiveLog>()) {
  check_degrees(shape);
  if (rank < 0 || rank >= shape.world()) {
    throw Error(
        "rank " + std::to_string(rank) + " is outside a world of " + std::to_string(shape.world()) +
        " ranks"
    );
  }
  std::vector<int64_t> everyone(static_cast<size_t>(shape.world()));
  for (size_t i = 0; i < everyone.size(); ++i) {
    everyone[i] = static_cast<int64_t>(i);
  }
  all_ = make_group("world", everyone, rank, make_backend, log_);

  for (const auto axis : kAllMeshAxes) {
    const auto at = static_cast<size_t>(axis);
    for (const auto& members : mesh_groups(shape, axis, order)) {
      auto group = make_group(to_string(axis), members, rank, make_backend, log_);
      if (group.index() >= 0) {
        groups_[at] = std::move(group);
      }
      const auto size = static_cast<int64_t>(members.size());
      for (int64_t inner = 2; inner < size; ++inner) {
        if (size % inner != 0) {
          continue;
        }
        for (int64_t first = 0; first < size; first += inner) {
          const std::vector<int64_t> block(
              members.begin() + first, members.begin() + first + inner
          );
          auto part = make_group(to_string(axis), block, rank, make_backend, log_);
          if (part.index() >= 0) {
            blocks_[at].push_back(std::move(part));
          }
        }
      }
    }
  }
}

const Group& Mesh::group(MeshAxis axis) const {
  return groups_[static_cast<size_t>(axis)];
}

const Group& Mesh::group(MeshAxis axis, int64_t inner) const {
  const auto& whole = group(axis);
  if (inner == 0 || inner == whole.size()) {
    return whole;
  }
  for (const auto& block : blocks_[static_cast<size_t>(axis)]) {
    if (block.size() == inner) {
      return block;
    }
  }
  throw InternalError(
      "mesh axis " + std::string(to_string(axis)) + " of " + std::to_string(whole.size()) +
      " has no blocks of " + std::to_string(inner)
  );
}

} // namespace mh
