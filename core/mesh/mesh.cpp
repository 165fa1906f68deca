#include "megahost/mesh.hpp"

#include "core/mesh/collective_log.hpp"
#include "megahost/error.hpp"

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <algorithm>
#include <map>
#include <sstream>

namespace mh {

namespace {

constexpr std::array<std::string_view, kMeshAxes> kNames = {
    "pp", "dp", "cp", "tp", "edp", "ep", "etp"};

int64_t degree(const MeshShape& shape, MeshAxis axis) {
  switch (axis) {
  case MeshAxis::pp:
    return shape.pp;
  case MeshAxis::dp:
    return shape.dp;
  case MeshAxis::cp:
    return shape.cp;
  case MeshAxis::tp:
    return shape.tp;
  case MeshAxis::edp:
    return shape.edp();
  case MeshAxis::ep:
    return shape.ep;
  case MeshAxis::etp:
    return shape.etp;
  }
  return 1;
}

void check(const MeshShape& shape) {
  for (const auto axis :
       {MeshAxis::pp, MeshAxis::dp, MeshAxis::cp, MeshAxis::tp, MeshAxis::ep, MeshAxis::etp}) {
    if (degree(shape, axis) < 1) {
      throw Error(
          "the mesh axis " + std::string(to_string(axis)) + " has degree " +
          std::to_string(degree(shape, axis)) + "; degrees are at least 1"
      );
    }
  }
  const int64_t dense = shape.tp * shape.cp * shape.dp;
  const int64_t experts = shape.etp * shape.ep;
  if (dense % experts != 0) {
    throw Error(
        "expert tensor " + std::to_string(shape.etp) + " times expert " + std::to_string(shape.ep) +
            " does not divide tensor times context times data = " + std::to_string(dense),
        "experts are dealt out over the ranks of tensor, context and data parallelism"
    );
  }
}

/// The axes of one mesh, fastest first: `order` names them with the dense mesh's words.
std::vector<MeshAxis> axes_in_order(std::string_view order, bool expert) {
  std::vector<MeshAxis> axes;
  std::stringstream words{std::string(order)};
  for (std::string word; std::getline(words, word, '-');) {
    if (word == "pp") {
      axes.push_back(MeshAxis::pp);
    } else if (word == "tp") {
      axes.push_back(expert ? MeshAxis::etp : MeshAxis::tp);
    } else if (word == "dp") {
      axes.push_back(expert ? MeshAxis::edp : MeshAxis::dp);
    } else if (word == "cp") {
      if (!expert) {
        axes.push_back(MeshAxis::cp);
      }
    } else if (word == "ep") {
      if (expert) {
        axes.push_back(MeshAxis::ep);
      }
    } else {
      throw Error(
          "the rank order `" + std::string(order) + "` has the unknown axis `" + word + "`",
          "an order is a permutation of tp-cp-ep-dp-pp"
      );
    }
  }
  std::vector<MeshAxis> sorted = axes;
  std::sort(sorted.begin(), sorted.end());
  const bool twice = std::adjacent_find(sorted.begin(), sorted.end()) != sorted.end();
  if (twice || axes.size() != 4) {
    throw Error(
        "the rank order `" + std::string(order) + "` does not name each axis once",
        "an order is a permutation of tp-cp-ep-dp-pp"
    );
  }
  return axes;
}

/// Members of every group along `along`, by first member.
std::vector<std::vector<int64_t>>
all_groups(const MeshShape& shape, const std::vector<MeshAxis>& axes, MeshAxis along) {
  std::map<int64_t, std::vector<int64_t>> by_first;
  for (int64_t rank = 0; rank < shape.world(); ++rank) {
    int64_t rest = rank;
    int64_t stride = 1;
    int64_t first = rank;
    for (const auto axis : axes) {
      const int64_t size = degree(shape, axis);
      if (axis == along) {
        first -= (rest % size) * stride;
      }
      rest /= size;
      stride *= size;
    }
    by_first[first].push_back(rank);
  }
  std::vector<std::vector<int64_t>> groups;
  for (auto& [first, members] : by_first) {
    groups.push_back(std::move(members));
  }
  return groups;
}

int64_t index_in(const std::vector<int64_t>& members, int64_t rank) {
  const auto found = std::find(members.begin(), members.end(), rank);
  return found == members.end() ? -1 : found - members.begin();
}

std::string group_name(std::string_view axis, const std::vector<int64_t>& members) {
  std::string name(axis);
  for (size_t i = 0; i < members.size(); ++i) {
    name += (i == 0 ? ":" : ",") + std::to_string(members[i]);
  }
  return name;
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
  return Group(name, members, index, std::move(backend), log);
}

} // namespace

std::string_view to_string(MeshAxis axis) {
  return kNames[static_cast<size_t>(axis)];
}

Mesh::Mesh()
    : Mesh(MeshShape{}, 0, nullptr) {}

Mesh::Mesh(
    const MeshShape& shape, int64_t rank, const MakeBackend& make_backend, std::string_view order
)
    : shape_(shape)
    , rank_(rank) {
  check(shape);
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
  const auto log = std::make_shared<CollectiveLog>();
  all_ = make_group("world", everyone, rank, make_backend, log);

  const auto dense = axes_in_order(order, /*expert=*/false);
  const auto expert = axes_in_order(order, /*expert=*/true);
  for (const auto axis : kAllMeshAxes) {
    const auto at = static_cast<size_t>(axis);
    const bool in_dense = std::find(dense.begin(), dense.end(), axis) != dense.end();
    for (const auto& members : all_groups(shape, in_dense ? dense : expert, axis)) {
      auto group = make_group(to_string(axis), members, rank, make_backend, log);
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
          auto part = make_group(to_string(axis), block, rank, make_backend, log);
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
