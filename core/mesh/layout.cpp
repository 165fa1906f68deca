#include "core/mesh/layout.hpp"

#include "megahost/error.hpp"

#include <algorithm>
#include <map>
#include <sstream>

namespace mh {

namespace {

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

} // namespace

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

int64_t process_groups(const MeshShape& shape) {
  const auto counts = [&](MeshAxis axis) {
    const bool expert = axis == MeshAxis::edp || axis == MeshAxis::ep || axis == MeshAxis::etp;
    return degree(shape, axis) > 1 && (!expert || shape.ep * shape.etp > 1);
  };
  return (shape.world() > 1 ? 1 : 0) +
         std::count_if(kAllMeshAxes.begin(), kAllMeshAxes.end(), counts);
}

void check_degrees(const MeshShape& shape) {
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
        "experts are sharded over the ranks of tensor, context and data parallelism"
    );
  }
}

std::vector<std::vector<int64_t>>
mesh_groups(const MeshShape& shape, MeshAxis along, std::string_view order) {
  auto axes = axes_in_order(order, /*expert=*/false);
  if (std::find(axes.begin(), axes.end(), along) == axes.end()) {
    axes = axes_in_order(order, /*expert=*/true);
  }
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

} // namespace mh
