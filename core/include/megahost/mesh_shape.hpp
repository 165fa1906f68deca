#pragma once
/// The axes of the two meshes (mesh.hpp) and their degrees, without LibTorch.

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace mh {

enum class MeshAxis : uint8_t { pp, dp, cp, tp, edp, ep, etp };
inline constexpr int kMeshAxes = 7;
inline constexpr std::array<MeshAxis, kMeshAxes> kAllMeshAxes = {
    MeshAxis::pp,
    MeshAxis::dp,
    MeshAxis::cp,
    MeshAxis::tp,
    MeshAxis::edp,
    MeshAxis::ep,
    MeshAxis::etp};

/// "pp", "dp", ... as they appear in groups, logs and tables.
[[nodiscard]] constexpr std::string_view to_string(MeshAxis axis) {
  constexpr std::array<std::string_view, kMeshAxes> kNames{
      "pp", "dp", "cp", "tp", "edp", "ep", "etp"};
  return kNames[static_cast<size_t>(axis)];
}

/// Degrees of parallelism. Expert data parallelism follows: edp = tp cp dp / (etp ep).
struct MeshShape {
  int64_t pp = 1, dp = 1, cp = 1, tp = 1, ep = 1, etp = 1;

  [[nodiscard]] int64_t world() const { return pp * dp * cp * tp; }

  [[nodiscard]] int64_t edp() const { return dp * cp * tp / (ep * etp); }
};

} // namespace mh
