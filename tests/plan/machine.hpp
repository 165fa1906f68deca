#pragma once
/// Machines of recipes/presets, for tests of plans.

#include "core/plan/hardware.hpp"

#include <cstdlib>
#include <filesystem>
#include <string>

namespace mh {

inline Machine preset_machine(const std::string& name) {
  ReadOptions roots;
  roots.roots = {std::filesystem::path(std::getenv("MEGAHOST_SOURCE")) / "recipes"};
  return find_machine(name, roots);
}

} // namespace mh
