#include "megahost/placement.hpp"

#include "megahost/error.hpp"

#include <algorithm>

namespace mh {

namespace {

std::string to_string(Along along) {
  switch (along.type) {
  case PlacementType::identical:
    return "identical";
  case PlacementType::replicated:
    return "replicated";
  case PlacementType::split:
    return "split " + std::to_string(along.dim);
  case PlacementType::partial:
    return "partial";
  }
  return "";
}

/// Applies one tier's rules; a mesh axis that already has a type is left alone.
void apply(
    const std::vector<Rule>& rules,
    bool may_replicate,
    const Dims& dims,
    const Mesh& mesh,
    Placement& placement
) {
  for (const auto& rule : rules) {
    const int64_t degree = mesh.size(rule.mesh);
    if (degree == 1 || placement[rule.mesh].type != PlacementType::identical) {
      continue;
    }
    for (size_t d = 0; d < dims.size(); ++d) {
      if (!(dims[d].logical == rule.logical)) {
        continue;
      }
      // What other mesh axes already cut from this dimension.
      int64_t size = dims[d].size;
      for (const auto other : kAllMeshAxes) {
        if (placement[other] == Along{PlacementType::split, static_cast<int8_t>(d)}) {
          size /= mesh.size(other);
        }
      }
      if (size % degree == 0) {
        placement[rule.mesh] = {PlacementType::split, static_cast<int8_t>(d)};
      } else if (may_replicate && rule.logical == axis::kv_heads && degree % size == 0) {
        placement[rule.mesh] = {PlacementType::replicated, 0};
      } else {
        throw Error(
            "axis `" + std::string(rule.logical.name) + "` of size " + std::to_string(size) +
                " cannot be split over " + std::string(mh::to_string(rule.mesh)) + " " +
                std::to_string(degree),
            "choose sizes or degrees that divide one another"
        );
      }
      break;
    }
  }
}

} // namespace

std::string to_string(const Placement& placement) {
  std::string text;
  for (const auto axis : kAllMeshAxes) {
    if (placement[axis].type != PlacementType::identical) {
      text += (text.empty() ? "" : ", ") + std::string(to_string(axis)) + ": " +
              to_string(placement[axis]);
    }
  }
  return text.empty() ? "identical" : text;
}

Placement Rules::place(const Dims& dims, const Mesh& mesh, Tier upto) const {
  Placement placement;
  apply(features, /*may_replicate=*/true, dims, mesh, placement);
  if (upto != Tier::features) {
    apply(tokens, /*may_replicate=*/false, dims, mesh, placement);
  }
  if (upto == Tier::between) {
    apply(between, /*may_replicate=*/false, dims, mesh, placement);
  }
  return placement;
}

std::vector<TokenRun> sharded_runs(Sharding sharding, int64_t size, int64_t ranks, int64_t index) {
  const int64_t pieces = sharding == Sharding::zigzag && ranks > 1 ? 2 * ranks : ranks;
  if (size % pieces != 0) {
    throw Error(
        "samples of " + std::to_string(size) + " tokens cannot be sharded over " +
            std::to_string(ranks) + " ranks in " + std::to_string(pieces) + " equal pieces",
        "choose model.seq_length as a multiple of " + std::to_string(pieces)
    );
  }
  const int64_t length = size / pieces;
  if (pieces == ranks) {
    return {{index * length, length}};
  }
  return {{index * length, length}, {(pieces - 1 - index) * length, length}};
}

std::vector<TokenRun> Rules::token_runs(int64_t seq, const Mesh& mesh) const {
  for (const auto& rule : tokens) {
    if (rule.logical == axis::seq && mesh.size(rule.mesh) > 1) {
      return sharded_runs(rule.sharding, seq, mesh.size(rule.mesh), mesh.coordinate(rule.mesh));
    }
  }
  return {{0, seq}};
}

bool Rules::maps(LogicalAxis logical, MeshAxis mesh_axis) const {
  return std::any_of(features.begin(), features.end(), [&](const Rule& rule) {
    return rule.logical == logical && rule.mesh == mesh_axis;
  });
}

std::vector<int64_t> local_sizes(const Dims& dims, const Placement& placement, const Mesh& mesh) {
  std::vector<int64_t> sizes;
  for (size_t d = 0; d < dims.size(); ++d) {
    int64_t units = dims[d].size;
    for (const auto axis : kAllMeshAxes) {
      if (placement[axis] == Along{PlacementType::split, static_cast<int8_t>(d)}) {
        units /= mesh.size(axis);
      }
    }
    sizes.push_back(units * dims[d].width);
  }
  return sizes;
}

} // namespace mh
