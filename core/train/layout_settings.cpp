#include "core/train/layout_settings.hpp"

#include "core/mesh/layout.hpp"
#include "core/recipe/layouts.hpp"

namespace mh {

std::string settings_text(const Recipe& recipe, const MeshShape& shape, Host& host) {
  const Value* parallel = recipe.tree.find("parallel"); // not there in a recipe made by code
  return parallel == nullptr
             ? ""
             : strategy_settings(*parallel, host.known(Kind::strategy), [&](MeshAxis axis) {
                 return degree(shape, axis) > 1;
               });
}

} // namespace mh
