// megahost mesh: ranks to coordinates, and every group, by node.

#include "core/base/text.hpp"
#include "core/commands/commands.hpp"
#include "core/mesh/layout.hpp"
#include "core/session/session.hpp"
#include "core/train/layout_settings.hpp"
#include "megahost/error.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

namespace mh {

namespace {

using Json = nlohmann::ordered_json;
using RankGroups = std::vector<std::vector<int64_t>>;

constexpr int64_t kMostPerNode = 1024;

struct AxisGroups {
  MeshAxis axis;
  RankGroups groups;
};

/// The axes along which there is more than one rank, with their groups.
std::vector<AxisGroups> groups_of(const MeshShape& shape, const std::string& order) {
  std::vector<AxisGroups> all;
  const bool experts = shape.ep > 1 || shape.etp > 1;
  for (const auto axis : kAllMeshAxes) {
    const bool of_experts = axis == MeshAxis::edp || axis == MeshAxis::ep || axis == MeshAxis::etp;
    if (degree(shape, axis) > 1 && (experts || !of_experts)) {
      all.push_back({axis, mesh_groups(shape, axis, order)});
    }
  }
  return all;
}

/// A rank's place in each axis' group.
std::vector<int64_t> coordinates(const std::vector<AxisGroups>& all, int64_t rank) {
  std::vector<int64_t> result;
  for (const auto& [axis, groups] : all) {
    for (const auto& members : groups) {
      const auto found = std::find(members.begin(), members.end(), rank);
      if (found != members.end()) {
        result.push_back(found - members.begin());
      }
    }
  }
  return result;
}

/// "0-3, 8": runs of neighbours are shortened, other even steps are written "0, 8, .. 56".
std::string members_text(const std::vector<int64_t>& members) {
  const size_t n = members.size();
  const int64_t step = n > 1 ? members[1] - members[0] : 1;
  bool even = true;
  for (size_t i = 1; i < n; ++i) {
    even = even && members[i] - members[i - 1] == step;
  }
  const auto text = [&](size_t i) { return std::to_string(members[i]); };
  if (even && step == 1 && n > 2) {
    return text(0) + "-" + text(n - 1);
  }
  if (even && n > 4) {
    return text(0) + ", " + text(1) + ", .. " + text(n - 1);
  }
  std::vector<std::string> coordinates;
  for (size_t i = 0; i < n; ++i) {
    coordinates.push_back(text(i));
  }
  return join(coordinates);
}

int64_t nodes_of(const std::vector<int64_t>& members, int64_t per_node) {
  std::vector<int64_t> nodes;
  for (const int64_t rank : members) {
    nodes.push_back(rank / per_node);
  }
  std::sort(nodes.begin(), nodes.end());
  return std::unique(nodes.begin(), nodes.end()) - nodes.begin();
}

void print_ranks(const std::vector<AxisGroups>& all, int64_t world, int64_t per_node) {
  for (int64_t rank = 0; rank < world; ++rank) {
    if (rank % per_node == 0) {
      std::printf("\nnode %lld\n  rank", static_cast<long long>(rank / per_node));
      for (const auto& [axis, groups] : all) {
        std::printf("%6s", std::string(to_string(axis)).c_str());
      }
      std::printf("\n");
    }
    std::printf("%6lld", static_cast<long long>(rank));
    for (const int64_t place : coordinates(all, rank)) {
      std::printf("%6lld", static_cast<long long>(place));
    }
    std::printf("\n");
  }
}

void print_groups(
    const std::vector<AxisGroups>& all, const Recipe::Parallel& parallel, int64_t per_node
) {
  for (const auto& [axis, groups] : all) {
    int64_t most = 0;
    for (const auto& members : groups) {
      most = std::max(most, nodes_of(members, per_node));
    }
    std::string name(to_string(axis));
    if (const std::string word = parallel.word(axis);
        word != name) { // the key of the strategy that splits it
      name += " (" + word + ")";
    }
    std::printf(
        "\n%s: %zu group%s of %zu, %s\n",
        name.c_str(),
        groups.size(),
        groups.size() == 1 ? "" : "s",
        groups.front().size(),
        most == 1 ? "each inside a node" : ("over up to " + std::to_string(most) + " nodes").c_str()
    );
    for (const auto& members : groups) {
      std::printf("  %s\n", members_text(members).c_str());
    }
  }
}

Json to_json(const std::vector<AxisGroups>& all, int64_t world, int64_t per_node) {
  Json json{{"world", world}, {"gpus_per_node", per_node}};
  for (int64_t rank = 0; rank < world; ++rank) {
    Json one{{"rank", rank}, {"node", rank / per_node}};
    const auto places = coordinates(all, rank);
    for (size_t i = 0; i < all.size(); ++i) {
      one[std::string(to_string(all[i].axis))] = places[i];
    }
    json["ranks"].push_back(std::move(one));
  }
  json["groups"] = Json::object();
  for (const auto& [axis, groups] : all) {
    json["groups"][std::string(to_string(axis))] = groups;
  }
  return json;
}

} // namespace

int command_mesh(const Invocation& invocation, Host& host) {
  const Read read = read_resolved(invocation, host, invocation.arguments.front());
  const Recipe& recipe = read.resolved.recipe;
  const int64_t ranks = std::max(recipe.parallel.ranks(), world_size(invocation, read.place));
  const MeshShape shape = mesh_shape(recipe, ranks);
  check_degrees(shape);
  const int64_t per_node = number_option(invocation, "--gpus-per-node", 8, 1, kMostPerNode);
  const auto all = groups_of(shape, recipe.parallel.order);
  if (invocation.has("--json")) {
    std::printf("%s\n", to_json(all, shape.world(), per_node).dump(2).c_str());
    return 0;
  }
  const int64_t nodes = (shape.world() + per_node - 1) / per_node;
  std::printf(
      "%lld rank%s on %lld node%s of %lld, order %s%s\n",
      static_cast<long long>(shape.world()),
      shape.world() == 1 ? "" : "s",
      static_cast<long long>(nodes),
      nodes == 1 ? "" : "s",
      static_cast<long long>(per_node),
      recipe.parallel.order.c_str(),
      settings_text(recipe, shape, host).c_str()
  );
  if (all.empty()) {
    std::printf("there are no groups: the layout is one rank\n");
    return 0;
  }
  print_ranks(all, shape.world(), per_node);
  print_groups(all, recipe.parallel, per_node);
  return 0;
}

} // namespace mh
