#include "core/checkpoint/local_saving.hpp"

#include "core/base/text.hpp"
#include "core/formats/crc32c.hpp"

#include <nlohmann/json.hpp>

#include <filesystem>

namespace mh {

Path local_folder(const Recipe& recipe, const Path& saves, int64_t node) {
  constexpr std::string_view kNode = "{node}";
  std::string folder = recipe.checkpoint.local_dir;
  if (const size_t at = folder.find(kNode); at != std::string::npos) {
    folder.replace(at, kNode.size(), std::to_string(node));
  }
  const std::string place =
      scheme_of(saves.string()) ? saves.string() : std::filesystem::absolute(saves).string();
  return Path(folder) / (recipe.name + "-" + crc_text(crc32c(place)));
}

std::string local_layout(const Mesh& mesh, const Nodes& nodes) {
  nlohmann::json layout{nodes.ranks};
  for (const MeshAxis axis : kAllMeshAxes) {
    layout.push_back(mesh.size(axis));
  }
  return layout.dump();
}

} // namespace mh
